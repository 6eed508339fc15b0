package wire

import "testing"

func TestParseIDTakesOnlyIDsOfTheRun(t *testing.T) {
	t.Parallel()
	for _, n := range []uint32{0, 1, 4_294_967_295} {
		if got, ok := ParseID("ab", FormatID("ab", n)); !ok || got != n {
			t.Errorf("ParseID(FormatID(%d)) = %d, %v", n, got, ok)
		}
	}
	for _, bad := range []string{"", "ab", "ab-", "-1", "ac-1", "ab-01", "ab-+1", "ab--1", "ab-4294967296", "ab-1 ", "abc-1", "ab-1.0", "ab-x"} {
		if n, ok := ParseID("ab", bad); ok {
			t.Errorf("ParseID(%q) = %d, want refusal", bad, n)
		}
	}
}

func TestGroupsAreNamedOnce(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, g := range Groups {
		if g == "" || seen[g] {
			t.Errorf("group %q is empty or named twice", g)
		}
		seen[g] = true
	}
}
