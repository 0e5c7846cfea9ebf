//! Kernel images in PTX: as much of it is read as a simulated GPU needs, so that tests hand the same text to a real driver.
//!
//! What counts are module variables in global memory, kernels with their parameters and local variables, and whether a kernel
//! calls `malloc`. Its instructions mean nothing here; what it costs is said in a comment, in the words of the text form:
//!
//! ```text
//! //ration-sim step time=500us width=25% touch
//! .visible .entry step(.param .u64 from) { ret; }
//! ```

use crate::image::Image;

/// Whether a text is PTX that was written for this driver too: it says so somewhere. What compilers make is not read.
pub(crate) fn is_for_us(text: &[u8]) -> bool {
    let start = text.trim_ascii_start();
    let mark = b"//ration-sim";
    (start.starts_with(b"//") || start.starts_with(b".version")) && text.windows(mark.len()).any(|at| at == mark)
}

/// Reads it; an error names the statement.
pub(crate) fn read(text: &str) -> Result<Image, String> {
    let mut image = Image::default();
    let costs: Vec<(&str, &str)> = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("//ration-sim "))
        .filter_map(|line| line.trim().split_once(' '))
        .collect();
    // These end with their line, everything else with a semicolon or a brace.
    let directives = [".version", ".target", ".address_size"];
    let lines = text.lines().filter(|line| !directives.iter().any(|word| line.trim_start().starts_with(word)));
    let plain = lines.map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n");
    let mut rest = plain.as_str();
    while let Some(end) = rest.find([';', '{']) {
        let (statement, opens) = (&rest[..end], rest.as_bytes()[end] == b'{');
        rest = &rest[end + 1..];
        let mut body = "";
        if opens {
            let close = closing(rest).ok_or_else(|| format!("{:?} is not closed", statement.trim()))?;
            body = &rest[..close];
            rest = &rest[close + 1..];
        }
        if let Some((_, header)) = statement.split_once(".entry") {
            let (name, params) = header.split_once('(').unwrap_or((header, ")"));
            let name = name.trim();
            let mut attributes = Vec::new();
            let sizes: Option<Vec<String>> = params
                .split(')')
                .next()
                .unwrap_or_default()
                .split(',')
                .filter(|param| !param.trim().is_empty())
                .map(|param| bytes_of(param).map(|bytes| bytes.to_string()))
                .collect();
            match sizes.ok_or_else(|| format!("kernel {name}: a parameter's type is not known here"))? {
                sizes if sizes.is_empty() => {}
                sizes => attributes.push(format!("param={}", sizes.join(","))),
            }
            let local: u64 =
                body.split([';', '{', '}']).filter(|line| line.contains(".local ")).filter_map(bytes_of).sum();
            attributes.push(format!("local={local}"));
            if body.contains("malloc") {
                attributes.push("heap".to_owned());
            }
            let cost = costs.iter().filter(|(of, _)| *of == name).flat_map(|(_, words)| words.split_whitespace());
            image.add_kernel(name, attributes.iter().map(String::as_str).chain(cost))?;
        } else if is_variable(statement) {
            let declared = statement.split('=').next().unwrap_or(statement);
            let bytes = bytes_of(declared).ok_or_else(|| format!("{:?}: of what size?", statement.trim()))?;
            let name =
                declared.split('[').next().unwrap_or_default().split_whitespace().next_back().unwrap_or_default();
            image.globals.push((name.to_owned(), bytes));
        }
    }
    Ok(image)
}

fn is_variable(statement: &str) -> bool {
    let mut words = statement.split_whitespace().take_while(|word| word.starts_with('.'));
    words.clone().any(|word| word == ".global") && !words.any(|word| word == ".extern")
}

/// Where the brace closes that was opened just before.
fn closing(text: &str) -> Option<usize> {
    let mut open = 1;
    text.bytes().position(|byte| {
        open += i32::from(byte == b'{') - i32::from(byte == b'}');
        open == 0
    })
}

/// Bytes of what a declaration declares: its type's, times its dimensions.
fn bytes_of(declaration: &str) -> Option<u64> {
    let kind = declaration.split_whitespace().find_map(|word| {
        let word = word.strip_prefix('.')?;
        let bits: u64 = word.get(1..)?.parse().ok()?;
        word.starts_with(['b', 'u', 's', 'f']).then_some(bits / 8)
    })?;
    let dimensions = declaration.split('[').skip(1).map(|part| part.split(']').next()?.trim().parse::<u64>().ok());
    dimensions.into_iter().try_fold(kind, |bytes, dimension| Some(bytes * dimension?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::Time;

    #[test]
    fn what_costs_something_is_read() {
        let image = read(
            "// made by hand\n.version 8.0\n.target sm_80\n.address_size 64\n\
             .visible .global .align 4 .b8 big[4][1024];\n.global .u64 kept = 5;\n.extern .global .u32 elsewhere;\n\
             .global .align 4 .b8 filled[8] = {1, 2};\n.extern .func (.param .b64 out) malloc(.param .b64 in);\n\
             //ration-sim step time=5us touch\n\
             .visible .entry step(.param .u64 from, .param .u32 n) { .local .align 4 .b8 room[2048]; { call malloc; } ret; }\n\
             .visible .entry empty() { ret; }\n",
        )
        .expect("good");
        let globals: Vec<(&str, u64)> = image.globals.iter().map(|(name, bytes)| (name.as_str(), *bytes)).collect();
        assert_eq!(globals, [("big", 4096), ("kept", 8), ("filled", 8)]);
        let step = &image.kernels[0];
        assert_eq!((step.time, step.local, step.heap, step.touch), (Time::Fixed(5000), 2048, true, true));
        assert_eq!(step.params, [(0, 8), (8, 4)]);
        assert_eq!(image.kernels[1].name.as_c_str(), c"empty");
    }

    #[test]
    fn what_is_not_understood_is_an_error() {
        assert!(read(".version 8.0\n.global .texref t[;").is_err());
        assert!(read(".version 8.0\n.entry a(.param .x b) { ret; }").is_err());
        assert!(read(".version 8.0\n.entry a() { ret;").is_err());
    }
}
