//! tantivy on its `MmapDirectory`, and on nowait's directory.

use std::path::{Path, PathBuf};

use nowait_bench::Result;
use nowait_bench::random::Random;
use nowait_measure::{Files, State, Work};
use nowait_tantivy::NowaitDirectory;
use tantivy::collector::TopDocs;
use tantivy::directory::MmapDirectory;
use tantivy::indexer::NoMergePolicy;
use tantivy::query::{PhraseQuery, Query, TermQuery};
use tantivy::schema::{Field, IndexRecordOption, STORED, Schema, TEXT};
use tantivy::{Index, IndexReader, IndexWriter, ReloadPolicy, TantivyDocument, Term, doc};

use crate::{Cases, OrFailed, STOCK, make_anew};

const ADAPTER: &str = "tantivy";
const DOCUMENTS: u64 = 200_000;
const WORDS_OF_DOCUMENT: u64 = 40;
const VOCABULARY: u64 = 50_000;
/// Documents that a query returns.
const HITS: usize = 10;
/// Documents of a round that indexes, and of one that commits.
const INDEXED: u64 = 10_000;
const COMMITS: u64 = 20;
const WRITER_BYTES: usize = 128 << 20;

#[derive(Clone, Copy)]
enum Kind {
    Terms,
    Phrases,
}

pub(crate) fn measure(cases: &mut Cases<'_>) -> Result<()> {
    let seed = cases.run.seed();
    let names = ["terms hot", "terms cold", "phrases hot", "phrases cold"];
    if cases.any(ADAPTER, &names) {
        let dir = cases.dir("tantivy")?;
        fill(&dir).or_failed("fill an index of tantivy")?;
        for (name, kind) in [("terms", Kind::Terms), ("phrases", Kind::Phrases)] {
            for (state, queries) in [(State::Hot, 1000), (State::Cold, 100)] {
                let files = Files::below(&[&dir])?;
                let work = Searches { dir: &dir, files, state, kind, queries, seed, reader: None };
                cases.measure(ADAPTER, &format!("{name} {}", state.name()), work)?;
            }
        }
    }
    let dir = cases.dir("tantivy-writes")?;
    cases.measure(ADAPTER, "indexing", Writes { dir: dir.clone(), commits: 1, documents: INDEXED, writer: None })?;
    cases.measure(ADAPTER, "commits", Writes { dir, commits: COMMITS, documents: COMMITS, writer: None })
}

/// A word, the lower numbers more often: half of all words come from a hundredth of the vocabulary.
fn word(random: &mut Random) -> String {
    let share = random.below(1 << 20) as f64 / f64::from(1 << 20);
    format!("w{}", (VOCABULARY as f64).powf(share * share.sqrt()) as u64)
}

fn text(number: u64) -> String {
    let mut random = Random::new(number);
    (0..WORDS_OF_DOCUMENT).map(|_| word(&mut random)).collect::<Vec<_>>().join(" ")
}

fn body(index: &Index) -> tantivy::Result<Field> {
    index.schema().get_field("body")
}

fn open(dir: &Path, way: usize) -> tantivy::Result<Index> {
    let mut schema = Schema::builder();
    schema.add_text_field("body", TEXT | STORED);
    match way {
        STOCK => Index::open_or_create(MmapDirectory::open(dir)?, schema.build()),
        _ => Index::open_or_create(NowaitDirectory::open(dir)?, schema.build()),
    }
}

/// Makes an index of four segments.
fn fill(dir: &Path) -> tantivy::Result<()> {
    let index = open(dir, STOCK)?;
    let (mut writer, body) = (writer(&index)?, body(&index)?);
    for number in 0..DOCUMENTS {
        writer.add_document(doc!(body => text(number)))?;
        if number % (DOCUMENTS / 4) == DOCUMENTS / 4 - 1 {
            writer.commit()?;
        }
    }
    writer.wait_merging_threads()
}

/// One thread, and no merges: each round does the same.
fn writer(index: &Index) -> tantivy::Result<IndexWriter> {
    let writer = index.writer_with_num_threads(1, WRITER_BYTES)?;
    writer.set_merge_policy(Box::new(NoMergePolicy));
    Ok(writer)
}

/// Queries for the best documents, which are read.
struct Searches<'a> {
    dir: &'a Path,
    files: Files,
    state: State,
    kind: Kind,
    queries: u64,
    seed: u64,
    reader: Option<IndexReader>,
}

impl Searches<'_> {
    fn open(&self, way: usize) -> tantivy::Result<IndexReader> {
        open(self.dir, way)?.reader_builder().reload_policy(ReloadPolicy::Manual).try_into()
    }

    fn query(&self, body: Field, random: &mut Random) -> Box<dyn Query> {
        let mut term = || Term::from_field_text(body, &word(random));
        match self.kind {
            Kind::Terms => Box::new(TermQuery::new(term(), IndexRecordOption::WithFreqs)),
            Kind::Phrases => Box::new(PhraseQuery::new(vec![term(), term()])),
        }
    }
}

impl Work for Searches<'_> {
    /// All documents of all queries, in order.
    type Answer = Vec<String>;

    fn operations(&self) -> u64 {
        self.queries
    }

    fn prepare(&mut self, way: usize, _: u64) -> Result<()> {
        // Pages that are mapped cannot be dropped.
        self.reader = None;
        self.files.make(self.state)?;
        if self.state == State::Hot {
            self.reader = Some(self.open(way).or_failed("open an index")?);
        }
        Ok(())
    }

    fn run(&mut self, way: usize, round: u64) -> Result<(Vec<String>, u64)> {
        let mut run = || -> tantivy::Result<Vec<String>> {
            let reader = match self.reader.take() {
                Some(reader) => reader,
                None => self.open(way)?,
            };
            let searcher = reader.searcher();
            let body = body(searcher.index())?;
            let mut random = Random::of(self.seed, round);
            let mut found = Vec::new();
            for _ in 0..self.queries {
                let query = self.query(body, &mut random);
                for (_, address) in searcher.search(&*query, &TopDocs::with_limit(HITS).order_by_score())? {
                    let document: TantivyDocument = searcher.doc(address)?;
                    found.extend(document.field_values().map(|(_, value)| format!("{value:?}")));
                }
            }
            Ok(found)
        };
        Ok((run().or_failed("search")?, 0))
    }
}

/// Durable commits of new documents, in a new index.
struct Writes {
    dir: PathBuf,
    commits: u64,
    documents: u64,
    writer: Option<(IndexWriter, Field)>,
}

impl Work for Writes {
    type Answer = u64;

    fn operations(&self) -> u64 {
        self.documents
    }

    fn prepare(&mut self, way: usize, _: u64) -> Result<()> {
        self.writer = None;
        make_anew(&self.dir)?;
        let create = || -> tantivy::Result<(IndexWriter, Field)> {
            let index = open(&self.dir, way)?;
            Ok((writer(&index)?, body(&index)?))
        };
        self.writer = Some(create().or_failed("create an index")?);
        Ok(())
    }

    fn run(&mut self, _: usize, _: u64) -> Result<(u64, u64)> {
        let (writer, body) = self.writer.as_mut().expect("prepared");
        let mut run = || -> tantivy::Result<u64> {
            let mut last = 0;
            for number in 0..self.documents {
                writer.add_document(doc!(*body => text(number)))?;
                if (number + 1) % (self.documents / self.commits) == 0 {
                    last = writer.commit()?;
                }
            }
            Ok(last)
        };
        Ok((run().or_failed("index")?, 0))
    }
}
