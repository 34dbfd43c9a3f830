// Triangles and diagonals of matrices, by the positions of rows and columns. T: a type of as many bytes as an element.

struct Triangle { View x, y; Positions rows, columns; i64 height, width, diagonal, upper; };
KERNEL(triangle, Triangle) {
    const i64 n = numel(p.y);
    for (i64 i = first_thread(); i < n; i += threads()) {
        const i64 row = over(i, p.width), apart = at(p.columns, i - row * p.width) - at(p.rows, row % p.height);
        const bool keeps = p.upper ? apart >= p.diagonal : apart <= p.diagonal;
        element<T>(p.y, place(p.y, i)) = keeps ? element<T>(p.x, place(p.x, i)) : T(0);
    }
}

KERNEL(embed, Triangle) {
    const i64 n = numel(p.y);
    for (i64 i = first_thread(); i < n; i += threads()) {
        const i64 row = over(i, p.width);
        const bool meets = at(p.columns, i - row * p.width) == at(p.rows, row % p.height);
        element<T>(p.y, place(p.y, i)) = meets ? element<T>(p.x, place(p.x, row)) : T(0);
    }
}

KERNEL(take, Triangle) {
    const i64 n = numel(p.y);
    for (i64 i = first_thread(); i < n; i += threads()) {
        const i64 column = find(p.columns, p.width, at(p.rows, i % p.height));
        element<T>(p.y, place(p.y, i)) = column < 0 ? T(0) : element<T>(p.x, place(p.x, i * p.width + column));
    }
}
