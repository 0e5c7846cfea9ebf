//! A terminal that a program runs in, and what stands on it.

#![allow(dead_code)] // each test uses its part

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::num::NonZero;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A program in a terminal of its own.
pub struct Screen {
    pub child: Child,
    keyboard: File,
    parser: Arc<Mutex<vt100::Parser>>,
}

impl Screen {
    /// Starts a command in a terminal of so many columns and lines.
    pub fn start(command: &mut Command, columns: u16, lines: u16) -> Screen {
        let (mut master, mut slave) = (-1, -1);
        let size = size(columns, lines);
        // SAFETY: two places for descriptors, which are ours from then on, no name, no modes, and a size.
        let rc = unsafe { libc::openpty(&mut master, &mut slave, std::ptr::null_mut(), std::ptr::null(), &size) };
        assert_eq!(rc, 0, "a terminal can be had");
        // SAFETY: openpty has just given us both.
        let (master, slave) = unsafe { (File::from_raw_fd(master), OwnedFd::from_raw_fd(slave)) };
        let end = || Stdio::from(slave.try_clone().expect("a descriptor"));
        command.stdin(end()).stdout(end()).stderr(end()).env("TERM", "xterm-256color").env_remove("NO_COLOR");
        // SAFETY: setsid and ioctl may be called between fork and exec; descriptor 0 is the terminal by then.
        unsafe {
            command.pre_exec(|| {
                if libc::setsid() < 0 || libc::ioctl(0, libc::TIOCSCTTY, 0) < 0 {
                    return Err(std::io::Error::last_os_error());
                }
                Ok(())
            });
        }
        let child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        drop(slave);
        let parser = Arc::new(Mutex::new(vt100::Parser::new(cells(lines), cells(columns), 0)));
        let (seen, mut output) = (Arc::clone(&parser), master.try_clone().expect("a descriptor"));
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                seen.lock().unwrap_or_else(PoisonError::into_inner).process(&bytes[..count]);
            }
        });
        Screen { child, keyboard: master, parser }
    }

    /// What stands there.
    pub fn text(&self) -> String {
        self.parser.lock().unwrap_or_else(PoisonError::into_inner).screen().contents()
    }

    /// The cells of it.
    pub fn look<T>(&self, at: impl FnOnce(&vt100::Screen) -> T) -> T {
        at(self.parser.lock().unwrap_or_else(PoisonError::into_inner).screen())
    }

    /// The line that begins with this, marks before it left out.
    pub fn line(&self, begin: &str) -> Option<String> {
        let text = self.text();
        text.lines().find(|line| line.get(2..).is_some_and(|line| line.starts_with(begin))).map(str::to_owned)
    }

    /// The colour of the first cell in which this text stands.
    pub fn colour_of(&self, text: &str) -> Option<vt100::Color> {
        let parser = self.parser.lock().unwrap_or_else(PoisonError::into_inner);
        let (lines, columns) = parser.screen().size();
        let (lines, columns) = (lines.get(), columns.get());
        let sign = |line, column| parser.screen().cell(line, column).map_or(" ", |cell| cell.contents());
        let blank = |sign: &str| if sign.is_empty() { " ".to_owned() } else { sign.to_owned() };
        (0..lines).find_map(|line| {
            let row: String = (0..columns).map(|column| blank(sign(line, column))).collect();
            let column = row[..row.find(text)?].chars().count();
            parser.screen().cell(line, column as u16).map(vt100::Cell::fgcolor)
        })
    }

    /// Whether the program has the other screen, which is gone when it ends.
    pub fn is_alternate(&self) -> bool {
        self.parser.lock().unwrap_or_else(PoisonError::into_inner).screen().alternate_screen()
    }

    pub fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).expect("it can be typed to");
    }

    pub fn resize(&mut self, columns: u16, lines: u16) {
        self.parser.lock().unwrap_or_else(PoisonError::into_inner).screen_mut().set_size(cells(lines), cells(columns));
        let size = size(columns, lines);
        // SAFETY: a terminal of ours and a size.
        assert_eq!(unsafe { libc::ioctl(self.keyboard.as_raw_fd(), libc::TIOCSWINSZ, &size) }, 0);
    }

    /// Waits until the screen is as it should be, and says how long that took.
    pub fn until(&self, what: &str, is_so: impl Fn(&Screen) -> bool) -> Duration {
        let began = Instant::now();
        while !is_so(self) {
            assert!(began.elapsed() < super::PATIENCE, "never {what}:\n{}", self.text());
            std::thread::sleep(Duration::from_millis(2));
        }
        began.elapsed()
    }

    /// Waits for the program's end.
    pub fn end(&mut self) -> ExitStatus {
        let deadline = Instant::now() + super::PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("it can be waited for") {
                return status;
            }
            assert!(Instant::now() < deadline, "it does not end:\n{}", self.text());
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn cells(number: u16) -> NonZero<u16> {
    NonZero::new(number).expect("a terminal has some")
}

fn size(columns: u16, lines: u16) -> libc::winsize {
    libc::winsize { ws_row: lines, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}
