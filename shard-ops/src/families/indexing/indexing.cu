// Rows of a table by key: picked, and folded into. T: the type. Keys from `own` on name ghosts, negative ones nothing.
#define DIMS 8
struct Rows {
    u64 table, ghosts, keys, other;  // the table, ghosts behind it, the key of each row on the other side, and that side
    u64 base, order, starts;         // what a fold begins with (or 0), rows by key, and where those of each key begin
    i64 own, ghost_rows, list, row;  // rows of the table, of the ghosts, on the other side; elements of a row
    i64 keyed_dims, keyed[DIMS], keyed_step[DIMS];
    i64 list_dims, lists[DIMS], list_step[DIMS];
    i64 row_dims, rows[DIMS], row_table[DIMS], row_other[DIMS];
};

// Where a row of the table begins.
DEVICE i64 row_of(const Rows& p, i64 key) {
    i64 at = 0;
    for (i32 d = (i32)p.keyed_dims - 1; d >= 0; d--) {
        const i64 rest = over(key, p.keyed[d]);
        at += (key - rest * p.keyed[d]) * p.keyed_step[d];
        key = rest;
    }
    return at;
}

// Where a row of the other side begins.
DEVICE i64 listed(const Rows& p, i64 j) {
    i64 at = 0;
    for (i32 d = (i32)p.list_dims - 1; d >= 0; d--) {
        const i64 rest = over(j, p.lists[d]);
        at += (j - rest * p.lists[d]) * p.list_step[d];
        j = rest;
    }
    return at;
}

// An element of a row: its place in the table's row, and in that of the other side. Ghosts are row-major.
DEVICE void within(const Rows& p, i64 r, i64& table, i64& other) {
    table = other = 0;
    for (i32 d = (i32)p.row_dims - 1; d >= 0; d--) {
        const i64 rest = over(r, p.rows[d]), i = r - rest * p.rows[d];
        table += i * p.row_table[d];
        other += i * p.row_other[d];
        r = rest;
    }
}

#ifdef PICK
KERNEL(pick, Rows) {
    const i64 n = p.list * p.row;
    for (i64 i = first_thread(); i < n; i += threads()) {
        const i64 j = over(i, p.row), r = i - j * p.row;
        const i64 key = ((const i64*)p.keys)[j];
        i64 table, other;
        within(p, r, table, other);
        T v;
        if (key < 0) v = at_bits<T>(0);
        else if (key < p.own) v = ((const T*)p.table)[row_of(p, key) + table];
        else v = ((const T*)p.ghosts)[(key - p.own) * p.row + r];
        ((T*)p.other)[listed(p, j) + other] = v;
    }
}
#endif

#ifdef JOIN
// Each row of the table and of the ghosts by itself, its terms in the order of the list.
KERNEL(fold, Rows) {
    const i64 n = (p.own + p.ghost_rows) * p.row;
    for (i64 i = first_thread(); i < n; i += threads()) {
        const i64 key = over(i, p.row), r = i - key * p.row;
        i64 table, other;
        within(p, r, table, other);
        const bool away = key >= p.own;
        const i64 at = away ? (key - p.own) * p.row + r : row_of(p, key) + table;
        T& to = away ? ((T*)p.ghosts)[at] : ((T*)p.table)[at];
        T sum = START;
        if (!away && p.base) sum = ((const T*)p.base)[at];
        const i64 end = ((const i64*)p.starts)[key + 1];
        for (i64 k = ((const i64*)p.starts)[key]; k < end; k++) {
            const T v = ((const T*)p.other)[listed(p, ((const i64*)p.order)[k]) + other];
            sum = (T)(JOIN(sum, v));
        }
        to = sum;
    }
}
#endif
