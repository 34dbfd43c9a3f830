//! Where generic kernels are compiled: here, once for each element type.
//!
//! A generic function is compiled by every crate that calls it, and again by that crate's tests. What [`compiled!`] declares is
//! a method of a trait of the element types instead, and those are compiled with the crate that they stand in.

/// Declares kernels that are generic over the element types of a bound, and whose bodies are compiled here. The bound has the
/// trait as one above it.
///
/// ```text
/// compiled! { trait Compiled for Real: f32 f64; {
///     /// The sum of some numbers.
///     pub fn sum<T>(of: &[T]) -> T = sum_here;
/// } }
///
/// fn sum_here<T: Real>(of: &[T]) -> T { .. }
///
/// pub trait Real: .. + sum::Compiled<Self> { .. }
/// ```
macro_rules! compiled {
    (trait $compiled:ident for $bound:ident: $($type:ident)+; $kernels:tt) => {
        $crate::compiled::compiled!(@declare $compiled $bound $kernels);
        $($crate::compiled::compiled!(@implement $compiled $type $kernels);)+
    };
    (@declare $compiled:ident $bound:ident {$(
        $(#[$about:meta])*
        $vis:vis fn $name:ident<T>($($arg:ident: $of:ty),* $(,)?) $(-> $out:ty)? = $body:ident;
    )+}) => {
        /// Kernels of an element type, compiled in this crate.
        #[doc(hidden)]
        pub trait $compiled<T: $bound> {
            $(fn $name($($arg: $of),*) $(-> $out)?;)+
        }
        $(
            $(#[$about])*
            #[inline]
            $vis fn $name<T: $bound>($($arg: $of),*) $(-> $out)? {
                <T as $compiled<T>>::$name($($arg),*)
            }
        )+
    };
    (@implement $compiled:ident $type:ident {$(
        $(#[$about:meta])*
        $vis:vis fn $name:ident<T>($($arg:ident: $of:ty),* $(,)?) $(-> $out:ty)? = $body:ident;
    )+}) => {
        const _: () = {
            type T = $type;
            impl $compiled<T> for T {
                $(fn $name($($arg: $of),*) $(-> $out)? {
                    $body::<T>($($arg),*)
                })+
            }
        };
    };
}
pub(crate) use compiled;
