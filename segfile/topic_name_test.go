package segfile

import "testing"

// TestDirectoryOfNoPartitionIsNone: p-0001 was partition -1.
func TestDirectoryOfNoPartitionIsNone(t *testing.T) {
	for name, want := range map[string]int{"p00000": 0, "p00012": 12, "p-0001": -1, "p1": -1, "p000012": -1, "00012": -1, "p": -1} {
		id, ok := parsePartitionName(name)
		if ok != (want >= 0) || ok && id != want {
			t.Errorf("%s: %d, %v", name, id, ok)
		}
	}
}
