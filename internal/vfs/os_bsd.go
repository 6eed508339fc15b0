//go:build unix && !linux && !darwin

package vfs

import (
	"errors"
	"os"
)

func dataSync(f *os.File) error { return f.Sync() }

// allocate is left to the writing of zeros.
func allocate(*os.File, int64, int64) error { return errors.ErrUnsupported }
