//! PTX: assembly text, which the driver compiles for the GPU when it loads it.
//!
//! Read in one pass, and only for what takes memory: declarations in the state spaces `.global` and `.const`, at the top and,
//! as the assembler takes them, at the beginning of any statement of a function. Everything else is passed over. The
//! compiler keeps every variable, used or not.
//!
//! ```text
//! .visible .global .attribute(.managed) .align 8 .v2 .f32 points[4][8] = { … }, other;
//! ```

use super::{Needs, room_for_function, room_for_variable};

/// Bytes of machine code for each byte of text; see [`code_of`].
const CODE_PER_BYTE: u64 = 2;

/// How much machine code a text becomes, roughly, and rather too much than too little. Of the 800 texts in NVIDIA's libraries
/// that come with machine code of the same source, one in two becomes less than 0.8 bytes a byte, and 19 in 20 less than 2.
pub fn code_of(length: u64) -> u64 {
    length.saturating_mul(CODE_PER_BYTE)
}

/// Whether a text may begin so.
pub fn may_begin_with(byte: u8) -> bool {
    is_blank(byte) || byte == b'/' || byte == b'.'
}

/// A text ends at its first NUL.
pub fn up_to_nul(text: &[u8]) -> &[u8] {
    text.split(|&byte| byte == 0).next().unwrap_or(text)
}

/// What a text needs. `None`: it is not PTX, which begins with its version.
pub fn needs(text: &[u8]) -> Option<Needs> {
    let mut reader = Reader { text, at: 0, needs: Needs::NOTHING, constants: 0, kernels: 0, heap_declared: 0 };
    if reader.token() != Token::Word(b".version") {
        return None;
    }
    reader.module();
    let mut needs = reader.needs;
    needs.data = needs.data.saturating_add(room_for_variable(reader.constants));
    needs.code = code_of(text.len() as u64).saturating_add(room_for_function(0).saturating_mul(reader.kernels));
    // A declaration alone asks for nothing: somewhere the function must be named again.
    let declared = reader.heap_declared;
    needs.heap = declared > 0 && HEAP.iter().map(|name| mentions(text, name)).sum::<usize>() > declared;
    Some(needs)
}

/// The functions of the heap on the device.
const HEAP: [&[u8]; 2] = [b"malloc", b"free"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token<'a> {
    /// A directive with its dot, a name, or a number.
    Word(&'a [u8]),
    /// Any other character.
    Sign(u8),
    /// What stands between double quotes.
    Text,
    End,
}

struct Reader<'a> {
    text: &'a [u8],
    at: usize,
    needs: Needs,
    /// What is in `.const`, which the driver keeps together.
    constants: u64,
    kernels: u64,
    /// How often functions of the heap are declared.
    heap_declared: usize,
}

impl<'a> Reader<'a> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    /// Passes over blanks and comments.
    fn blanks(&mut self) {
        while let Some(byte) = self.peek() {
            if is_blank(byte) {
                self.at += 1;
            } else if !(byte == b'/' && self.comment()) {
                return;
            }
        }
    }

    /// Passes over a comment, if one begins at this slash.
    fn comment(&mut self) -> bool {
        let rest = &self.text[self.at..];
        let length = match rest.get(1) {
            Some(b'/') => rest.iter().position(|&byte| byte == b'\n'),
            Some(b'*') => rest[2..].windows(2).position(|end| end == b"*/").map(|at| at + 4),
            _ => return false,
        };
        self.at += length.unwrap_or(rest.len());
        true
    }

    /// Passes over what stands between double quotes, from the first of them on. Nothing in it can stand for a quote.
    fn quoted(&mut self) {
        let rest = &self.text[self.at + 1..];
        self.at += 1 + rest.iter().position(|&byte| byte == b'"').map_or(rest.len(), |end| end + 1);
    }

    fn token(&mut self) -> Token<'a> {
        self.blanks();
        let start = self.at;
        match self.peek() {
            None => Token::End,
            Some(b'"') => {
                self.quoted();
                Token::Text
            }
            Some(first) if first == b'.' || is_part_of_name(first) => {
                self.at += 1;
                // Directives may stand together without blanks, so a dot ends what is before it.
                while self.peek().is_some_and(is_part_of_name) {
                    self.at += 1;
                }
                Token::Word(&self.text[start..self.at])
            }
            Some(sign) => {
                self.at += 1;
                Token::Sign(sign)
            }
        }
    }

    /// The whole text: declarations and functions.
    fn module(&mut self) {
        let mut external = false;
        loop {
            match self.token() {
                Token::End => return,
                Token::Word(b".extern") => external = true,
                Token::Word(space @ (b".global" | b".const")) => {
                    self.variables(space, external);
                    external = false;
                }
                Token::Word(b".entry") => self.kernels += 1,
                Token::Word(name) => self.heap_declared += usize::from(external && HEAP.contains(&name)),
                // Parameters; `.global` among them says where a pointer leads.
                Token::Sign(b'(') => self.parenthesis(),
                Token::Sign(b'{') => {
                    self.body();
                    external = false;
                }
                Token::Sign(b';') => external = false,
                Token::Sign(_) | Token::Text => {}
            }
        }
    }

    /// Passes over a parenthesis whose opening has been read, and tells whether a word stands in it.
    fn parenthesis_with(&mut self, sought: &[u8]) -> bool {
        let mut depth = 1;
        let mut found = false;
        while depth > 0 {
            match self.token() {
                Token::Sign(b'(') => depth += 1,
                Token::Sign(b')') => depth -= 1,
                Token::Word(word) => found |= word == sought,
                // Parentheses do not reach over the ends of statements: one that does was never closed.
                Token::Sign(b';' | b'{' | b'}') => {
                    self.at -= 1;
                    break;
                }
                Token::End => break,
                Token::Sign(_) | Token::Text => {}
            }
        }
        found
    }

    fn parenthesis(&mut self) {
        self.parenthesis_with(b"");
    }

    /// A function's statements up to the brace that closes it. Instructions are most of a text, and are passed over by the
    /// byte.
    fn body(&mut self) {
        let mut depth = 1;
        loop {
            // At the beginning of a statement, where a declaration may stand.
            self.blanks();
            if self.peek() == Some(b'.') {
                let start = self.at;
                if let Token::Word(space @ (b".global" | b".const")) = self.token() {
                    self.variables(space, false);
                    continue;
                }
                self.at = start;
            }
            loop {
                let rest = &self.text[self.at..];
                let Some(length) = rest.iter().position(|&byte| MARKS[usize::from(byte)]) else {
                    self.at = self.text.len();
                    return;
                };
                self.at += length;
                match rest[length] {
                    b'"' => self.quoted(),
                    b'/' => self.at += usize::from(!self.comment()),
                    mark => {
                        self.at += 1;
                        match mark {
                            b'{' => depth += 1,
                            b'}' => depth -= 1,
                            _ => {}
                        }
                        break;
                    }
                }
            }
            if depth == 0 {
                return;
            }
        }
    }

    /// Declarations of variables in memory, from behind the state space to the semicolon.
    fn variables(&mut self, space: &[u8], external: bool) {
        let mut kind = Kind { constant: space == b".const", external, managed: false, element: 0, vector: 1 };
        let mut variable: Option<Variable> = None;
        loop {
            match self.token() {
                Token::Word(b".align") => _ = self.token(),
                Token::Word(b".attribute") => {
                    if self.token() == Token::Sign(b'(') {
                        kind.managed |= self.parenthesis_with(b".managed");
                    }
                }
                Token::Word(b".v2") => kind.vector = 2,
                Token::Word(b".v4") => kind.vector = 4,
                Token::Word(b".v8") => kind.vector = 8,
                Token::Word([b'.', kind_of_value @ ..]) => kind.element = size_of_value(kind_of_value),
                Token::Word(_) => variable = Some(Variable { names: 1, count: 1, unsized_array: false }),
                Token::Sign(b'[') => {
                    let length = self.dimension();
                    if let Some(variable) = &mut variable {
                        match length {
                            Some(length) => variable.count = variable.count.saturating_mul(length),
                            None => variable.unsized_array = true,
                        }
                    }
                }
                // `name<4>` stands for four variables.
                Token::Sign(b'<') => {
                    if let Token::Word(names) = self.token()
                        && let Some(variable) = &mut variable
                    {
                        variable.names = number(names);
                    }
                }
                Token::Sign(b'=') => {
                    let elements = self.initial_values();
                    if let Some(variable) = &mut variable
                        && variable.unsized_array
                    {
                        variable.count = variable.count.saturating_mul(elements);
                    }
                }
                Token::Sign(b',') => self.declare(&kind, variable.take()),
                Token::Sign(b';') | Token::End => {
                    self.declare(&kind, variable);
                    return;
                }
                // No declaration has them; whatever this is, what comes next is read afresh.
                Token::Sign(b'{' | b'}') => {
                    self.at -= 1;
                    return;
                }
                Token::Sign(_) | Token::Text => {}
            }
        }
    }

    fn declare(&mut self, kind: &Kind, variable: Option<Variable>) {
        let Some(variable) = variable.filter(|_| !kind.external) else { return };
        let size = kind.element.saturating_mul(kind.vector).saturating_mul(variable.count);
        let (sum, room) = if kind.constant {
            (&mut self.constants, size)
        } else if kind.managed {
            (&mut self.needs.managed, size)
        } else {
            (&mut self.needs.data, room_for_variable(size))
        };
        *sum = sum.saturating_add(room.saturating_mul(variable.names));
    }

    /// The length in brackets, the first of which has been read. `None`: the initial values tell it.
    fn dimension(&mut self) -> Option<u64> {
        let mut length = None;
        loop {
            match self.token() {
                Token::Word(word) => length = Some(number(word)),
                Token::Sign(b';' | b'{' | b'}') => {
                    self.at -= 1;
                    return length;
                }
                Token::Sign(b']') | Token::End => return length,
                Token::Sign(_) | Token::Text => {}
            }
        }
    }

    /// Passes over initial values, and counts the outermost of them.
    fn initial_values(&mut self) -> u64 {
        let mut count = 1;
        let mut depth = 0u64;
        loop {
            self.blanks();
            match self.peek() {
                // The end of the declaration, or the next of its variables.
                None | Some(b';') => return count,
                Some(b',') if depth == 0 => return count,
                Some(b',') if depth == 1 => count += 1,
                Some(b'{' | b'(') => depth += 1,
                Some(b'}' | b')') => depth = depth.saturating_sub(1),
                Some(b'"') => {
                    self.quoted();
                    continue;
                }
                Some(_) => {}
            }
            self.at += 1;
        }
    }
}

/// What is common to the variables of a declaration.
struct Kind {
    constant: bool,
    /// Somebody else's, and only mentioned.
    external: bool,
    managed: bool,
    element: u64,
    vector: u64,
}

struct Variable {
    names: u64,
    count: u64,
    unsized_array: bool,
}

/// Bytes at which a statement ends, or something that may hide such a byte begins.
const MARKS: [bool; 256] = {
    let mut marks = [false; 256];
    let mut at = 0;
    let all = b"{};:\"/";
    while at < all.len() {
        marks[all[at] as usize] = true;
        at += 1;
    }
    marks
};

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c)
}

fn is_part_of_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'%')
}

/// The size of a value from its type: `b8` to `b128`, `u32`, `f64`, `f16x2`. References to textures take no memory here.
fn size_of_value(kind: &[u8]) -> u64 {
    let Some((b'b' | b'u' | b's' | b'f', bits)) = kind.split_first() else { return 0 };
    match bits {
        b"8" => 1,
        b"16" => 2,
        b"32" | b"16x2" => 4,
        b"64" => 8,
        b"128" => 16,
        _ => 0,
    }
}

/// A number as the assembler reads it: decimal, hexadecimal, octal or binary, possibly with a U behind it.
fn number(word: &[u8]) -> u64 {
    if word == b"WARP_SZ" {
        return 32;
    }
    let (radix, digits) = match word {
        [b'0', b'x' | b'X', digits @ ..] => (16, digits),
        [b'0', b'b' | b'B', digits @ ..] => (2, digits),
        [b'0', digits @ ..] => (8, digits),
        digits => (10, digits),
    };
    let values = digits.iter().map_while(|&digit| char::from(digit).to_digit(radix));
    values.fold(0, |sum: u64, digit| sum.saturating_mul(radix.into()).saturating_add(digit.into()))
}

/// How often a name stands in a text.
fn mentions(text: &[u8], name: &[u8]) -> usize {
    let before = |at: usize| at.checked_sub(1).is_none_or(|at| !is_part_of_name(text[at]));
    let found = text.windows(name.len()).enumerate().filter(|(_, part)| part == &name);
    found.filter(|&(at, _)| before(at) && text.get(at + name.len()).is_none_or(|&byte| !is_part_of_name(byte))).count()
}
