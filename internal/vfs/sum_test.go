package vfs

import "testing"

func TestSumTellsFileSystemsApart(t *testing.T) {
	build := func(dir, name, text string) uint64 {
		t.Helper()
		m := NewMem()
		if err := m.Mkdir(dir); err != nil {
			t.Fatal(err)
		}
		f, err := m.Create(dir + "/" + name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt([]byte(text), 0); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		return m.Sum()
	}
	first := build("d", "f", "text")
	if build("d", "f", "text") != first {
		t.Error("equal file systems have different sums")
	}
	for _, other := range [][3]string{{"e", "f", "text"}, {"d", "g", "text"}, {"d", "f", "texu"}, {"d", "f", "text\x00"}} {
		if build(other[0], other[1], other[2]) == first {
			t.Errorf("%q has the sum of another", other)
		}
	}
}
