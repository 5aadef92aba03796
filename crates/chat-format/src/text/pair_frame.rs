//! The special tokens around a pair of texts, and the types of its tokens.

/// The special tokens of a pair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PairFrame {
    pub(super) before: Vec<u32>,
    pub(super) between: Vec<u32>,
    pub(super) after: Vec<u32>,
    /// The number of tokens of type 1 between the texts, at the end. `None` if all tokens of pairs have type 0.
    pub(super) between_of_type_1: Option<usize>,
}

impl PairFrame {
    /// Finds the special tokens around the tokens `first` and `second` in the encoding of their pair, with the types of the tokens.
    pub(super) fn find(ids: &[u32], types: &[u32], [first, second]: [&[u32]; 2]) -> Option<Self> {
        let position = |part: &[u32], from: usize| {
            let found = ids.get(from..)?.windows(part.len().max(1)).position(|window| window == part);
            found.map(|place| from + place)
        };
        let start = position(first, 0)?;
        let end = start + first.len();
        let other = position(second, end)?;
        let of_type_1 =
            types.iter().position(|kind| *kind == 1).filter(|place| (end..=other).contains(place));
        Some(Self {
            before: ids[..start].to_vec(),
            between: ids[end..other].to_vec(),
            after: ids[other + second.len()..].to_vec(),
            between_of_type_1: of_type_1.map(|place| other - place),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_frame_of_a_pair_is_found_with_its_types() {
        let find = |ids: &[u32], types: &[u32]| PairFrame::find(ids, types, [&[7], &[8]]).expect("is found");
        let bert = find(&[1, 7, 2, 8, 2], &[0, 0, 0, 1, 1]);
        assert_eq!((bert.before, bert.between, bert.after), (vec![1], vec![2], vec![2]));
        assert_eq!(bert.between_of_type_1, Some(0));
        let roberta = find(&[1, 7, 2, 2, 8, 2], &[0; 6]);
        assert_eq!((roberta.between, roberta.between_of_type_1), (vec![2, 2], None));
        assert_eq!(find(&[1, 7, 2, 2, 8], &[0, 0, 0, 1, 1]).between_of_type_1, Some(1));
    }
}
