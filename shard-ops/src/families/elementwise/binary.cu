// Maps of two numbers. T: the type. FORMULA: an expression of a and b, or one of the words below.

struct Binary { View a, b, y; };
// A zero is above its negative.
#define larger (a == b && a == 0 ? a + b : a != a || a > b ? a : b)
#define smaller (a == b && a == 0 ? -(-a - b) : a != a || a < b ? a : b)
KERNEL(binary, Binary) {
    const i64 n = numel(p.y);
    for (i64 i = first_thread(); i < n; i += threads()) {
        const T a = element<T>(p.a, place(p.a, i)), b = element<T>(p.b, place(p.b, i));
        element<T>(p.y, place(p.y, i)) = (T)(FORMULA);
    }
}
