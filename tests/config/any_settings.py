"""Settings as a fuzzer types them: sound, nearly sound, and anything at all."""

from __future__ import annotations

import yaml
from hypothesis import strategies as st

from transnormer.config.keys import all_keys, all_sections

# Keys that exist, keys one edit away, and anything at all.
key_text = st.one_of(
    st.sampled_from([*all_keys(), *all_sections()]),
    st.sampled_from([*all_keys()]).map(lambda key: key[:-1]),
    st.sampled_from([*all_keys()]).map(lambda key: f"{key}.more"),
    st.text(max_size=12),
)
value_text = st.one_of(
    st.sampled_from(["1", "0", "-1", "1e-3", "true", "null", "", "[diag, norm]", "{a: {b: 1}}", "{a: 1}", "cosine"]),
    st.sampled_from(["*a", "&a [*a]", "!!python/name:os.system", "!!binary aGk=", "<<", "{<<: 1}", "? x", "1" * 5000]),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=6,
    ).map(lambda value: yaml.safe_dump(value, default_flow_style=True).removesuffix("\n...\n")),
    st.text(max_size=20),
)
