//! Triangular filters on a mel scale.

/// The filters of a mel spectrogram, as the nonzero factors of each.
pub(crate) struct MelFilters {
    filters: Vec<Filter>,
}

struct Filter {
    /// The first frequency with a factor.
    first: usize,
    factors: Vec<f64>,
}

/// A mel scale, and the heights of the filters on it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum MelScale {
    /// The scale of Slaney's Auditory Toolbox. Each filter has an area of one.
    Slaney,
    /// The scale of HTK. Each filter has a height of one.
    Htk,
}

/// Below 1000 Hz Slaney's scale is linear, with 200/3 Hz per mel.
const LINEAR: f64 = 200.0 / 3.0;
/// The bound between the linear and the logarithmic part, in Hz and mel.
const BOUND: (f64, f64) = (1000.0, 15.0);
/// Above the bound, 27 mel are a factor of 6.4.
const LOG_STEPS: f64 = 27.0;
const LOG_FACTOR: f64 = 6.4;

/// The factor and the frequency of HTK's scale.
const HTK: (f64, f64) = (2595.0, 700.0);

impl MelFilters {
    /// Creates `count` filters for the frequencies from 0 to `highest` Hz, of which there are `frequencies` at equal distances.
    pub(crate) fn new(scale: MelScale, count: usize, frequencies: usize, highest: f64) -> Self {
        let top = scale.mel(highest);
        let bounds: Vec<f64> =
            (0..count + 2).map(|place| scale.hertz(top * place as f64 / (count + 1) as f64)).collect();
        let filter = |bounds: &[f64]| {
            let (low, middle, high) = (bounds[0], bounds[1], bounds[2]);
            let factor = |index: usize| {
                let frequency = highest * index as f64 / (frequencies - 1) as f64;
                let slope = ((frequency - low) / (middle - low)).min((high - frequency) / (high - middle));
                slope.max(0.0) * scale.height(high - low)
            };
            let factors: Vec<f64> = (0..frequencies).map(factor).collect();
            let first = factors.iter().position(|factor| *factor > 0.0).unwrap_or(0);
            let end = factors.iter().rposition(|factor| *factor > 0.0).map_or(0, |last| last + 1);
            Filter { first, factors: factors[first..end.max(first)].to_vec() }
        };
        Self { filters: bounds.windows(3).map(filter).collect() }
    }

    /// Returns the sums of a spectrum under each filter.
    pub(crate) fn apply<'a>(&'a self, powers: &'a [f64]) -> impl Iterator<Item = f64> + 'a {
        self.filters.iter().map(|filter| {
            let powers = &powers[filter.first..];
            filter.factors.iter().zip(powers).map(|(factor, power)| factor * power).sum()
        })
    }
}

impl MelScale {
    fn mel(self, hertz: f64) -> f64 {
        match self {
            Self::Slaney if hertz < BOUND.0 => hertz / LINEAR,
            Self::Slaney => BOUND.1 + (hertz / BOUND.0).ln() * LOG_STEPS / LOG_FACTOR.ln(),
            Self::Htk => HTK.0 * (1.0 + hertz / HTK.1).log10(),
        }
    }

    fn hertz(self, mel: f64) -> f64 {
        match self {
            Self::Slaney if mel < BOUND.1 => mel * LINEAR,
            Self::Slaney => BOUND.0 * ((mel - BOUND.1) * LOG_FACTOR.ln() / LOG_STEPS).exp(),
            Self::Htk => HTK.1 * (10f64.powf(mel / HTK.0) - 1.0),
        }
    }

    /// Returns the height of a filter of this width in Hz.
    fn height(self, width: f64) -> f64 {
        match self {
            Self::Slaney => 2.0 / width,
            Self::Htk => 1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slaneys_scale_is_linear_below_one_kilohertz_and_logarithmic_above() {
        assert!((MelScale::Slaney.mel(600.0) - 9.0).abs() < 1e-9);
        assert!((MelScale::Slaney.mel(6400.0) - 42.0).abs() < 1e-9);
    }

    #[test]
    fn scales_are_inverted() {
        for value in [0.0, 14.9, 15.0, 15.1, 45.0] {
            for scale in [MelScale::Slaney, MelScale::Htk] {
                assert!((scale.mel(scale.hertz(value)) - value).abs() < 1e-9, "{scale:?}, {value}");
            }
        }
    }

    #[test]
    fn each_filter_of_slaney_has_an_area_of_one() {
        // With one frequency per hertz, the sum of the factors is the area.
        for filter in MelFilters::new(MelScale::Slaney, 80, 8001, 8000.0).filters {
            assert!((filter.factors.iter().sum::<f64>() - 1.0).abs() < 0.02);
        }
    }
}
