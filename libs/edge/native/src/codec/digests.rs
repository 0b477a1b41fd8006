//! MD5 of many bodies at once.
//!
//! One MD5 waits for itself in every step, so a processor is idle most of the time. Lanes side by
//! side do not wait for each other: each word below is one of eight bodies', and the compiler makes
//! vector instructions of the loops over them, wider ones where the processor has them (1 KB, eight
//! lanes: 1.3 us a body, 0.4 with AVX2; 1.8 alone). Too few bodies of about the same size
//! for that go through the crate, which is also what the tests compare with.

use md5::{Digest, Md5};

const LANES: usize = 8;
const BLOCK_BYTES: usize = 64;
/// Bytes that fit beside the length in the last block.
const TAIL_BYTES: usize = BLOCK_BYTES - 8;
/// Lanes pay from so many full ones on.
const LEAST_FULL: usize = 3;

type Words = [u32; LANES];
pub type Md5Digest = [u8; 16];

const START: [u32; 4] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];
const TURNS: [[u32; 4]; 4] = [[7, 12, 17, 22], [5, 9, 14, 20], [4, 11, 16, 23], [6, 10, 15, 21]];
/// The word of a block that a round takes at its step i is (first + i * stride) mod 16.
const WORD_ORDER: [(usize, usize); 4] = [(0, 1), (1, 5), (5, 3), (0, 7)];
/// The whole part of 2^32 |sin(i + 1)|, RFC 1321.
const SINES: [u32; 64] = [
    0xd76a_a478,
    0xe8c7_b756,
    0x2420_70db,
    0xc1bd_ceee,
    0xf57c_0faf,
    0x4787_c62a,
    0xa830_4613,
    0xfd46_9501,
    0x6980_98d8,
    0x8b44_f7af,
    0xffff_5bb1,
    0x895c_d7be,
    0x6b90_1122,
    0xfd98_7193,
    0xa679_438e,
    0x49b4_0821,
    0xf61e_2562,
    0xc040_b340,
    0x265e_5a51,
    0xe9b6_c7aa,
    0xd62f_105d,
    0x0244_1453,
    0xd8a1_e681,
    0xe7d3_fbc8,
    0x21e1_cde6,
    0xc337_07d6,
    0xf4d5_0d87,
    0x455a_14ed,
    0xa9e3_e905,
    0xfcef_a3f8,
    0x676f_02d9,
    0x8d2a_4c8a,
    0xfffa_3942,
    0x8771_f681,
    0x6d9d_6122,
    0xfde5_380c,
    0xa4be_ea44,
    0x4bde_cfa9,
    0xf6bb_4b60,
    0xbebf_bc70,
    0x289b_7ec6,
    0xeaa1_27fa,
    0xd4ef_3085,
    0x0488_1d05,
    0xd9d4_d039,
    0xe6db_99e5,
    0x1fa2_7cf8,
    0xc4ac_5665,
    0xf429_2244,
    0x432a_ff97,
    0xab94_23a7,
    0xfc93_a039,
    0x655b_59c3,
    0x8f0c_cc92,
    0xffef_f47d,
    0x8584_5dd1,
    0x6fa8_7e4f,
    0xfe2c_e6e0,
    0xa301_4314,
    0x4e08_11a1,
    0xf753_7e82,
    0xbd3a_f235,
    0x2ad7_d2bb,
    0xeb86_d391,
];

/// Return the MD5 of each body, in order.
pub fn md5_of_each(bodies: &[&[u8]]) -> Vec<Md5Digest> {
    let mut digests = vec![[0; 16]; bodies.len()];
    // Bodies of about the same size side by side.
    let mut order: Vec<usize> = (0..bodies.len()).collect();
    order.sort_by_key(|at| bodies[*at].len());
    for chosen in order.chunks(LANES) {
        let counts = chosen.iter().map(|at| block_count(bodies[*at].len()));
        let longest = counts.clone().max().unwrap_or(0);
        if counts.sum::<usize>() < LEAST_FULL * longest {
            for at in chosen {
                digests[*at] = Md5::digest(bodies[*at]).into();
            }
        } else {
            side_by_side(bodies, chosen, &mut digests);
        }
    }
    digests
}

/// Blocks of a body with the bit behind it and its length.
fn block_count(size: usize) -> usize {
    size / BLOCK_BYTES + if size % BLOCK_BYTES < TAIL_BYTES { 1 } else { 2 }
}

fn side_by_side(bodies: &[&[u8]], chosen: &[usize], digests: &mut [Md5Digest]) {
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has these instructions.
        return unsafe { side_by_side_wide(bodies, chosen, digests) };
    }
    lanes(bodies, chosen, digests);
}

/// `lanes` in instructions over eight words.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn side_by_side_wide(bodies: &[&[u8]], chosen: &[usize], digests: &mut [Md5Digest]) {
    lanes(bodies, chosen, digests);
}

#[inline(always)]
fn lanes(bodies: &[&[u8]], chosen: &[usize], digests: &mut [Md5Digest]) {
    let mut lanes: Vec<Lane<'_>> = chosen.iter().map(|at| Lane::new(bodies[*at])).collect();
    let longest = lanes.iter().map(|lane| lane.count).max().unwrap_or(0);
    let mut state = START.map(|word| [word; LANES]);
    let mut words = [[0; LANES]; 16];
    for number in 0..longest {
        for (at, lane) in lanes.iter_mut().enumerate() {
            if number < lane.count {
                lane.load(number, at, &mut words);
            }
        }
        compress(&mut state, &words);
        for (at, lane) in lanes.iter().enumerate() {
            if number + 1 == lane.count {
                for (bytes, word) in digests[chosen[at]].chunks_exact_mut(4).zip(&state) {
                    bytes.copy_from_slice(&word[at].to_le_bytes());
                }
            }
        }
    }
}

/// A body, and its last blocks.
struct Lane<'a> {
    body: &'a [u8],
    count: usize,
    tail: [u8; 2 * BLOCK_BYTES],
}

impl<'a> Lane<'a> {
    fn new(body: &'a [u8]) -> Self {
        let count = block_count(body.len());
        let full = body.len() / BLOCK_BYTES * BLOCK_BYTES;
        let rest = &body[full..];
        let mut tail = [0; 2 * BLOCK_BYTES];
        tail[..rest.len()].copy_from_slice(rest);
        tail[rest.len()] = 0x80;
        let end = count * BLOCK_BYTES - full;
        tail[end - 8..end].copy_from_slice(&(body.len() as u64).wrapping_mul(8).to_le_bytes());
        Self { body, count, tail }
    }

    #[inline(always)]
    fn load(&self, number: usize, at: usize, words: &mut [Words; 16]) {
        let first = number * BLOCK_BYTES;
        let full = self.body.len() / BLOCK_BYTES * BLOCK_BYTES;
        let block = if first < full {
            &self.body[first..first + BLOCK_BYTES]
        } else {
            &self.tail[first - full..first - full + BLOCK_BYTES]
        };
        for (word, bytes) in words.iter_mut().zip(block.chunks_exact(4)) {
            word[at] = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
    }
}

/// Four steps with the rotations of a round; its words are those of `WORD_ORDER`.
macro_rules! four_steps {
    ($state:ident, $words:ident, $round:literal, $first:expr, $mix:expr) => {{
        let (begin, stride) = WORD_ORDER[$round];
        let at = $first;
        let word = |step: usize| &$words[(begin + (at + step) * stride) % 16];
        let sine = |step: usize| SINES[$round * 16 + at + step];
        let [a, b, c, d] = &mut $state;
        step(a, [&*b, &*c, &*d], $mix, word(0), sine(0), TURNS[$round][0]);
        step(d, [&*a, &*b, &*c], $mix, word(1), sine(1), TURNS[$round][1]);
        step(c, [&*d, &*a, &*b], $mix, word(2), sine(2), TURNS[$round][2]);
        step(b, [&*c, &*d, &*a], $mix, word(3), sine(3), TURNS[$round][3]);
    }};
}

macro_rules! round {
    ($state:ident, $words:ident, $round:literal, $mix:expr) => {
        four_steps!($state, $words, $round, 0, $mix);
        four_steps!($state, $words, $round, 4, $mix);
        four_steps!($state, $words, $round, 8, $mix);
        four_steps!($state, $words, $round, 12, $mix);
    };
}

#[inline(always)]
fn step(
    into: &mut Words,
    [b, c, d]: [&Words; 3],
    mix: impl Fn(u32, u32, u32) -> u32,
    word: &Words,
    sine: u32,
    turn: u32,
) {
    for at in 0..LANES {
        let sum = into[at]
            .wrapping_add(mix(b[at], c[at], d[at]))
            .wrapping_add(word[at])
            .wrapping_add(sine);
        into[at] = b[at].wrapping_add(sum.rotate_left(turn));
    }
}

#[inline(always)]
fn compress(state: &mut [Words; 4], words: &[Words; 16]) {
    let mut now = *state;
    round!(now, words, 0, |x, y, z| z ^ (x & (y ^ z)));
    round!(now, words, 1, |x, y, z| y ^ (z & (x ^ y)));
    round!(now, words, 2, |x, y, z| x ^ y ^ z);
    round!(now, words, 3, |x, y, z| y ^ (x | !z));
    for (word, added) in state.iter_mut().zip(&now) {
        for at in 0..LANES {
            word[at] = word[at].wrapping_add(added[at]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(size: usize) -> Vec<u8> {
        (0..size).map(|at| (at * 7 + size) as u8).collect()
    }

    fn assert_same(sizes: &[usize]) {
        let bodies: Vec<Vec<u8>> = sizes.iter().map(|size| body(*size)).collect();
        let slices: Vec<&[u8]> = bodies.iter().map(Vec::as_slice).collect();
        let expected: Vec<Md5Digest> = slices.iter().map(|one| Md5::digest(one).into()).collect();
        assert_eq!(md5_of_each(&slices), expected, "{sizes:?}");
    }

    #[test]
    fn each_size_up_to_three_blocks_in_every_lane() {
        for size in 0..=192 {
            assert_same(&[size; LANES]);
            assert_same(&(size..size + LANES + 3).collect::<Vec<_>>());
        }
    }

    #[test]
    fn the_same_without_wide_instructions() {
        let bodies: Vec<Vec<u8>> = (60..60 + LANES).map(body).collect();
        let slices: Vec<&[u8]> = bodies.iter().map(Vec::as_slice).collect();
        let (mut plain, order) = (vec![[0; 16]; LANES], (0..LANES).collect::<Vec<_>>());
        lanes(&slices, &order, &mut plain);
        assert_eq!(plain, md5_of_each(&slices));
    }

    #[test]
    fn any_number_of_bodies_and_one_that_is_much_longer() {
        for count in 0..20 {
            let mut sizes = vec![1_024; count];
            assert_same(&sizes);
            sizes.insert(count / 2, 100_000);
            assert_same(&sizes);
        }
    }
}
