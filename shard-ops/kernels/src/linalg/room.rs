//! Factors by elimination in memory that is kept from one matrix of a batch to the next: where these are small, most of the time would go into
//! asking for it.

use faer::dyn_stack::{MemBuffer, MemStack, StackReq};
use faer::linalg::cholesky::llt::factor::{cholesky_in_place, cholesky_in_place_scratch};
use faer::linalg::lu::partial_pivoting::factor::{lu_in_place, lu_in_place_scratch};
use faer::linalg::lu::partial_pivoting::solve::{solve_in_place, solve_in_place_scratch};
use faer::perm::PermRef;
use faer::{Mat, Par, Scale};

/// Room for a matrix of `n` rows and columns, and for others of its rows.
pub(super) struct Room {
    /// The matrix, which its factors take the place of.
    pub(super) a: Mat<f64>,
    /// What is found, or what it is found for.
    pub(super) made: Mat<f64>,
    /// The order of rows, and where each of them is in it.
    order: [Vec<usize>; 2],
    pivots: Vec<f64>,
    seen: Vec<bool>,
    memory: MemBuffer,
}

impl Room {
    pub(super) fn new(n: usize, columns: usize) -> Self {
        let needs = [
            lu_in_place_scratch::<usize, f64>(n, n, Par::Seq, Default::default()),
            solve_in_place_scratch::<usize, f64>(n, columns, Par::Seq),
            cholesky_in_place_scratch::<f64>(n, Par::Seq, Default::default()),
        ];
        Self {
            a: Mat::zeros(n, n),
            made: Mat::zeros(n, columns),
            order: [vec![0; n], vec![0; n]],
            pivots: Vec::with_capacity(2 * n),
            seen: vec![false; n],
            memory: MemBuffer::new(StackReq::any_of(&needs)),
        }
    }

    /// Makes the inverse.
    pub(super) fn invert(&mut self) {
        if self.a.nrows() > 0 {
            self.eliminate();
            self.inverse_of_factors();
        }
    }

    /// Makes the solution for what is there.
    pub(super) fn solve(&mut self) {
        if self.a.nrows() == 0 {
            return;
        }
        self.eliminate();
        self.solve_by_factors();
    }

    /// Puts `L` of `L Lᵀ` in the place of the matrix, of which the lower triangle is read, if there is one.
    pub(super) fn cholesky(&mut self) -> bool {
        let (n, stack) = (self.a.nrows(), MemStack::new(&mut self.memory));
        let (rule, by) = Default::default();
        let found = cholesky_in_place(self.a.as_mut(), rule, Par::Seq, stack, by);
        // What is above the diagonal was room, too.
        for j in 1..n {
            self.a.col_mut(j).subrows_mut(0, j).fill(0.0);
        }
        found.is_ok()
    }

    /// Makes the inverse times the determinant, if a pivot is not far below the others.
    pub(super) fn adjugate(&mut self) -> bool {
        const FAR: f64 = 1e-4;
        let n = self.a.nrows();
        let sizes = self.pivots().iter().take(n).map(|d| d.abs());
        let (least, most) = sizes.fold((f64::INFINITY, 0.0), |(least, most): (f64, f64), d| {
            (least.min(d), most.max(d))
        });
        if n > 0 && least <= FAR * most {
            return false;
        }
        let product: f64 = self.pivots.iter().product();
        if n > 0 {
            self.inverse_of_factors();
            self.made *= Scale(product);
        }
        true
    }

    /// Numbers whose product is the determinant: pivots, and the sign of their order.
    pub(super) fn pivots(&mut self) -> &[f64] {
        let n = self.a.nrows();
        self.pivots.clear();
        if n == 0 {
            return &self.pivots;
        }
        self.eliminate();
        self.pivots.extend((0..n).map(|i| self.a[(i, i)]));
        // The greatest of a column is zero: so is the determinant, and what follows was divided by it.
        if let Some(at) = self.pivots.iter().position(|&d| d == 0.0) {
            self.pivots.truncate(at + 1);
            return &self.pivots;
        }
        // A cycle of even length turns the sign.
        self.seen.fill(false);
        for start in 0..n {
            let (mut at, mut length) = (start, 0);
            while !std::mem::replace(&mut self.seen[at], true) {
                at = self.order[0][at];
                length += 1;
            }
            if length > 0 && length % 2 == 0 {
                self.pivots.push(-1.0);
            }
        }
        &self.pivots
    }

    /// Puts `L` and `U` in the place of the matrix, and notes the order of rows.
    fn eliminate(&mut self) {
        let [order, places] = &mut self.order;
        let stack = MemStack::new(&mut self.memory);
        let by = Default::default();
        lu_in_place(self.a.as_mut(), order, places, Par::Seq, stack, by);
    }

    /// Solves for the unit matrix: that takes a fourth to a half less for small matrices than `faer`'s inverse of factors, and no more for large ones.
    fn inverse_of_factors(&mut self) {
        self.made.fill(0.0);
        self.made.diagonal_mut().fill(1.0);
        self.solve_by_factors();
    }

    fn solve_by_factors(&mut self) {
        let [order, places] = &self.order;
        let order = PermRef::new_checked(order, places, order.len());
        let stack = MemStack::new(&mut self.memory);
        let (factors, made) = (self.a.as_ref(), self.made.as_mut());
        solve_in_place(factors, factors, order, made, Par::Seq, stack);
    }
}
