package planted

import (
	"os"
	"path/filepath"
	"testing"
)

func TestNothingOfAFailedModelTestStays(t *testing.T) {
	root := t.TempDir()
	write := func(path string) {
		t.Helper()
		full := filepath.Join(root, filepath.FromSlash(path))
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(full, []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	there := func(path string) bool {
		_, err := os.Stat(filepath.Join(root, filepath.FromSlash(path)))
		return err == nil
	}

	done := sweep(filepath.Join(root, "fresh", "testdata", "rapid", "TestX"))
	write("fresh/testdata/rapid/TestX/new.fail")
	done()
	if there("fresh/testdata") || !there("fresh") {
		t.Error("want what the test made gone, and no more")
	}

	write("used/testdata/rapid/TestX/old.fail")
	write("used/testdata/golden")
	done = sweep(filepath.Join(root, "used", "testdata", "rapid", "TestX"))
	write("used/testdata/rapid/TestX/new.fail")
	done()
	if there("used/testdata/rapid/TestX/new.fail") || !there("used/testdata/rapid/TestX/old.fail") || !there("used/testdata/golden") {
		t.Error("want the new file gone and the others kept")
	}
}
