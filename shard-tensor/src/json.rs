//! Values as JSON, if JSON can hold them: it has no NaN and no infinity, and one `null` for both `None` and `Some(())`.

use serde::ser::{self, Serialize, Serializer};
use std::fmt;

/// The text of a value, or why reading it would give another one.
pub(crate) fn write<T: Serialize>(value: &T) -> Result<Vec<u8>, String> {
    value.serialize(Check).map_err(|fault| fault.0)?;
    serde_json::to_vec(value).map_err(|e| e.to_string())
}

/// Walks a value as a serializer does, and says of each part whether it is written as `null`.
struct Check;

#[derive(Debug)]
struct Fault(String);

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Fault {}

impl ser::Error for Fault {
    fn custom<T: fmt::Display>(text: T) -> Self {
        Self(text.to_string())
    }
}

type Checked = Result<bool, Fault>;

/// Methods of a serializer for which there is nothing to see.
macro_rules! plain {
    ($($method:ident($($arg:ty),*);)*) => {$(
        fn $method(self, $(_: $arg),*) -> Checked {
            Ok(false)
        }
    )*};
}

/// Methods that begin a compound.
macro_rules! compound {
    ($($method:ident($($arg:ty),*) $kind:ident;)*) => {$(
        type $kind = Self;

        fn $method(self, $(_: $arg),*) -> Result<Self, Fault> {
            Ok(self)
        }
    )*};
}

impl Serializer for Check {
    type Ok = bool;
    type Error = Fault;

    plain! {
        serialize_bool(bool);
        serialize_i8(i8);
        serialize_i16(i16);
        serialize_i32(i32);
        serialize_i64(i64);
        serialize_i128(i128);
        serialize_u8(u8);
        serialize_u16(u16);
        serialize_u32(u32);
        serialize_u64(u64);
        serialize_u128(u128);
        serialize_char(char);
        serialize_str(&str);
        serialize_bytes(&[u8]);
        serialize_unit_variant(&'static str, u32, &'static str);
    }

    compound! {
        serialize_seq(Option<usize>) SerializeSeq;
        serialize_tuple(usize) SerializeTuple;
        serialize_tuple_struct(&'static str, usize) SerializeTupleStruct;
        serialize_tuple_variant(&'static str, u32, &'static str, usize) SerializeTupleVariant;
        serialize_map(Option<usize>) SerializeMap;
        serialize_struct(&'static str, usize) SerializeStruct;
        serialize_struct_variant(&'static str, u32, &'static str, usize) SerializeStructVariant;
    }

    fn serialize_f32(self, x: f32) -> Checked {
        self.serialize_f64(x.into())
    }

    fn serialize_f64(self, x: f64) -> Checked {
        match x.is_finite() {
            true => Ok(false),
            false => Err(Fault(format!("{x}, which JSON cannot hold"))),
        }
    }

    fn serialize_none(self) -> Checked {
        Ok(true)
    }

    fn serialize_unit(self) -> Checked {
        Ok(true)
    }

    fn serialize_unit_struct(self, _: &'static str) -> Checked {
        Ok(true)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Checked {
        match value.serialize(self)? {
            false => Ok(false),
            true => Err(Fault("a `Some` that JSON cannot tell from `None`".into())),
        }
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Checked {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        value: &T,
    ) -> Checked {
        value.serialize(self).map(|_| false)
    }
}

/// Compounds of parts: each is walked, none makes the whole `null`.
macro_rules! parts {
    ($($kind:ident: $($method:ident($($name:ty),*)),+;)*) => {$(
        impl ser::$kind for Check {
            type Ok = bool;
            type Error = Fault;

            $(fn $method<T: Serialize + ?Sized>(&mut self, $(_: $name,)* value: &T) -> Result<(), Fault> {
                value.serialize(Self).map(drop)
            })+

            fn end(self) -> Checked {
                Ok(false)
            }
        }
    )*};
}

parts! {
    SerializeSeq: serialize_element();
    SerializeTuple: serialize_element();
    SerializeTupleStruct: serialize_field();
    SerializeTupleVariant: serialize_field();
    SerializeMap: serialize_key(), serialize_value();
    SerializeStruct: serialize_field(&'static str);
    SerializeStructVariant: serialize_field(&'static str);
}
