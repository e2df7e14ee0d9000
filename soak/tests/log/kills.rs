//! Writers that are killed, while they open, append, cut or close. Written pages survive them.

use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::time::{Duration, Instant};

use crate::common::mounts;
use crate::common::rng::Rng;
use crate::model::{Found, Model};
use crate::writer;

/// Kills of one log.
const KILLS: u32 = 60;

pub(crate) fn kills() {
    let seed = nowait_soak::seed();
    eprintln!("NOWAIT_TEST_SEED={seed}");
    let (begun, mut rng, mut count) = (Instant::now(), Rng::new(seed), 0);
    while begun.elapsed() < Duration::from_secs(nowait_soak::seconds()) {
        count += kill(&mut rng, begun + Duration::from_secs(nowait_soak::seconds()));
    }
    eprintln!("{count} kills");
}

fn kill(rng: &mut Rng, until: Instant) -> u32 {
    let dir = mounts::temp_dir();
    let (log, events) = (dir.path().join("log"), dir.path().join("events"));
    let (mut model, mut at) = (Model::default(), 0);
    for count in 0..KILLS {
        if Instant::now() > until {
            return count;
        }
        let mut child = writer::start(&log, &events, rng.next());
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // Some are killed while they open.
        if rng.below(5) > 0 {
            lines.find(|line| line.as_ref().is_ok_and(|line| line.contains(writer::OPEN)));
        }
        std::thread::sleep(Duration::from_micros(rng.below(60_000) as u64));
        // It may have ended already.
        let _ = child.kill();
        let status = child.wait().unwrap();
        assert!(status.code().is_none_or(|code| code == 0), "the writer ended with {status}");
        if events.exists() {
            let mut file = std::fs::File::open(&events).unwrap();
            file.seek(SeekFrom::Start(at)).unwrap();
            let mut text = String::new();
            at += file.read_to_string(&mut text).unwrap() as u64;
            text.lines().for_each(|line| model.event(line).unwrap());
        }
        model.check(&Found::read(&log).unwrap()).unwrap();
    }
    KILLS
}
