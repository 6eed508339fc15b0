package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"go/format"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/penstock/penstock/tools/internal/repo"
)

// checkFormat names every Go file that gofmt would change. Files in testdata
// count as well; folders with a leading dot do not.
func checkFormat(_ context.Context, r *repo.Repo, _ io.Writer) error {
	var errs []error
	err := filepath.WalkDir(r.Root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != r.Root && strings.HasPrefix(d.Name(), "."):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go"):
			return nil
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		source = bytes.ReplaceAll(source, []byte("\r\n"), []byte("\n")) // a checkout on Windows may convert
		formatted, err := format.Source(source)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", path, err))
		} else if !bytes.Equal(formatted, source) {
			errs = append(errs, fmt.Errorf("%s: run gofmt -w", path))
		}
		return nil
	})
	return errors.Join(append(errs, err)...)
}
