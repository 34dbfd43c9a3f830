//! The builder that all optimizers have, made from a list of their options.

/// Implements an optimizer around `Slots` of its options: setters for all parameters and for groups, steps, and its state.
macro_rules! optimizer {
    ($name:ident, $options:ident, $new:expr; $($(#[$doc:meta])* $set:ident($($arg:ident: $type:ty),*) |$o:ident| $body:expr;)*) => {
        impl $name {
            #[doc = concat!("For these parameters, with the options of a new `", stringify!($name), "`. A tensor that is listed twice is one parameter.")]
            ///
            /// # Collective
            /// All members of the parameters' meshes. No communication.
            ///
            /// # Errors
            /// [`Argument`](crate::Error::Argument) for tensors that are no parameters of `f32` or `f64`, and a rate below 0 or
            /// NaN.
            #[track_caller]
            pub fn new(parameters: crate::nn::Parameters, rate: f64) -> crate::Result<Self> {
                let _call = shard_comm::Calling::of(concat!(stringify!($name), "::new"));
                let new: fn(f64) -> $options = $new;
                Ok(Self(super::slots::Slots::new(parameters, new(rate))?))
            }

            /// This optimizer for other parameters, as of a [copy](crate::nn::ModelExt::copied) of the model: with its options and
            /// groups, and with what it remembers of the parameters of the same names. From then on both go their own ways.
            ///
            /// # Collective
            /// As [`new`](Self::new).
            ///
            /// # Errors
            /// [`Argument`](crate::Error::Argument) for parameters of other names, or laid out in another way; as [`new`](Self::new).
            #[track_caller]
            pub fn with_parameters(&self, parameters: crate::nn::Parameters) -> crate::Result<Self> {
                Ok(Self(self.0.with_parameters(parameters)?))
            }

            /// Changes the options of the parameters whose names are picked, as of
            /// `|name| name.ends_with("bias")`. Groups may overlap: what is said later holds.
            ///
            /// # Collective
            /// All ranks of the program, alike.
            ///
            /// # Errors
            /// [`Argument`](crate::Error::Argument) if no name is picked, for options that make no sense, and for a rate of its
            /// own where the optimizer's is 0: it would have no ratio to it.
            #[track_caller]
            pub fn group(
                self,
                pick: impl Fn(&str) -> bool,
                set: impl Fn($options) -> $options,
            ) -> crate::Result<Self> {
                let _call = shard_comm::Calling::of("group");
                Ok(Self(self.0.group(|name, _| pick(name), set)?))
            }

            /// As [`group`](Self::group), of parameters that are picked by what they are, as of `|_, p| p.ndim() < 2` the biases and the
            /// weights of norms, which often do not decay.
            ///
            /// # Collective
            /// As [`group`](Self::group).
            ///
            /// # Errors
            /// As [`group`](Self::group).
            #[track_caller]
            pub fn group_by(
                self,
                pick: impl Fn(&str, &crate::ShardTensor) -> bool,
                set: impl Fn($options) -> $options,
            ) -> crate::Result<Self> {
                let _call = shard_comm::Calling::of("group_by");
                Ok(Self(self.0.group(pick, set)?))
            }

            $(
                $(#[$doc])*
                /// Of all parameters.
                #[must_use]
                pub fn $set(self, $($arg: $type),*) -> Self {
                    Self(self.0.all(|options| options.$set($($arg),*)))
                }
            )*
        }

        #[doc = concat!("The options of [`", stringify!($name), "`] for some parameters.")]
        impl $options {
            /// The learning rate. Its ratio to the optimizer's stays when that is [set](super::Optimizer::set_learning_rate).
            #[must_use]
            pub fn learning_rate(mut self, rate: f64) -> Self {
                self.rate = rate;
                self
            }

            $(
                $(#[$doc])*
                #[must_use]
                pub fn $set(mut self, $($arg: $type),*) -> Self {
                    let $o = &mut self;
                    $body;
                    self
                }
            )*
        }

        impl super::slots::Rated for $options {
            fn name(&self) -> &'static str {
                stringify!($name)
            }

            fn rate(&self) -> f64 {
                self.rate
            }

            fn set_rate(&mut self, rate: f64) {
                self.rate = rate;
            }
        }

        impl super::Optimizer for $name {
            #[track_caller]
            fn step(&mut self, gradients: &crate::Gradients) -> crate::Result<()> {
                self.0.step(gradients)
            }

            fn learning_rate(&self) -> f64 {
                self.0.rate()
            }

            fn set_learning_rate(&mut self, rate: f64) {
                self.0.set_rate(rate);
            }
        }

        impl crate::Stateful for $name {
            #[track_caller]
            fn state(&self) -> crate::Result<crate::State> {
                self.0.state()
            }

            #[track_caller]
            fn load_state(&mut self, state: &crate::State) -> crate::Result<()> {
                self.0.load_state(state)
            }
        }
    };
}

pub(super) use optimizer;
