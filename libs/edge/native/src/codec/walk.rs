//! Reads protobuf as serialisers write it: fields ascending, varints minimal, defaults left out.
//!
//! Other forms are legal, and `Unusual` here: what is read by this can be kept as it is, because a
//! parser and its serialiser would give the same bytes.

/// The bytes are left to the plain twin: not in the usual form, beyond a limit, or wrong.
#[derive(Debug, PartialEq, Eq)]
pub struct Unusual;

pub type Usual<T> = Result<T, Unusual>;

#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Value<'a> {
    pub fn bytes(self) -> Usual<&'a [u8]> {
        match self {
            Value::Bytes(bytes) => Ok(bytes),
            Value::Number(_) => Err(Unusual),
        }
    }

    /// A text or message that a serialiser would not have left out.
    pub fn present(self) -> Usual<&'a [u8]> {
        self.bytes().and_then(|bytes| usual(!bytes.is_empty()).map(|()| bytes))
    }

    /// A number of a field that may be zero.
    pub fn number(self) -> Usual<u64> {
        match self {
            Value::Number(number) => Ok(number),
            Value::Bytes(_) => Err(Unusual),
        }
    }

    /// A number that a serialiser would not have left out.
    pub fn nonzero(self) -> Usual<u64> {
        self.number().and_then(|number| usual(number != 0).map(|()| number))
    }
}

pub fn usual(is_so: bool) -> Usual<()> {
    if is_so {
        Ok(())
    } else {
        Err(Unusual)
    }
}

/// The fields of one message, in order.
pub struct Fields<'a> {
    data: &'a [u8],
    at: usize,
    last: u64,
    repeated: u64,
}

pub const NONE: u64 = 0;

impl<'a> Fields<'a> {
    /// `repeated`: the number of the one field that may occur more than once, or `NONE`.
    pub fn new(data: &'a [u8], repeated: u64) -> Self {
        Self { data, at: 0, last: 0, repeated }
    }

    /// The next field's number and value; `None` at the end.
    pub fn next(&mut self) -> Usual<Option<(u64, Value<'a>)>> {
        if self.at == self.data.len() {
            return Ok(None);
        }
        let key = self.varint()?;
        let number = key >> 3;
        usual(number > self.last || (number == self.last && number == self.repeated))?;
        self.last = number;
        let value = match key & 7 {
            0 => Value::Number(self.varint()?),
            2 => {
                let size = usize::try_from(self.varint()?).map_err(|_| Unusual)?;
                usual(size <= self.data.len() - self.at)?;
                self.at += size;
                Value::Bytes(&self.data[self.at - size..self.at])
            }
            _ => return Err(Unusual),
        };
        Ok(Some((number, value)))
    }

    fn varint(&mut self) -> Usual<u64> {
        let mut value = 0u64;
        for shift in (0..63).step_by(7) {
            let byte = *self.data.get(self.at).ok_or(Unusual)?;
            self.at += 1;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                usual(byte != 0 || shift == 0)?;
                return Ok(value);
            }
        }
        // Negative, or too long.
        Err(Unusual)
    }
}

/// Append a number as protobuf writes it.
pub fn push_varint(into: &mut Vec<u8>, mut value: u64) {
    while value > 0x7f {
        into.push(value as u8 | 0x80);
        value >>= 7;
    }
    into.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_in_order() {
        let data = [0x0a, 2, b'a', b'b', 0x10, 0x96, 0x01];
        let mut fields = Fields::new(&data, NONE);
        assert_eq!(fields.next(), Ok(Some((1, Value::Bytes(b"ab")))));
        assert_eq!(fields.next(), Ok(Some((2, Value::Number(150)))));
        assert_eq!(fields.next(), Ok(None));
    }

    #[test]
    fn only_the_repeated_field_repeats() {
        let data = [0x08, 1, 0x10, 2, 0x10, 3];
        let mut fields = Fields::new(&data, 2);
        while let Ok(Some(_)) = fields.next() {}
        assert_eq!(fields.next(), Ok(None));
        let mut fields = Fields::new(&data, NONE);
        assert!(fields.next().is_ok() && fields.next().is_ok());
        assert_eq!(fields.next(), Err(Unusual));
    }

    #[test]
    fn other_forms_are_unusual() {
        let forms: [&[u8]; 7] = [
            &[0x10, 1, 0x08, 1],                                     // descending
            &[0x08, 0x81, 0x00],                                     // longer than it has to be
            &[0x0a, 5, b'a'],                                        // cut
            &[0x08],                                                 // without its value
            &[0x0d, 0, 0, 0, 0],                                     // a fixed number
            &[0x0b, 0x0c],                                           // a group
            &[0x08, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1], // negative
        ];
        for form in forms {
            let mut fields = Fields::new(form, NONE);
            let mut last = fields.next();
            while let Ok(Some(_)) = last {
                last = fields.next();
            }
            assert_eq!(last, Err(Unusual), "{form:?}");
        }
    }

    #[test]
    fn varints_come_back() {
        for value in [0, 1, 127, 128, 300, 1 << 40] {
            let mut data = vec![0x08];
            push_varint(&mut data, value);
            assert_eq!(Fields::new(&data, NONE).next(), Ok(Some((1, Value::Number(value)))));
        }
    }
}
