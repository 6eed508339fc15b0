//go:build !linux

package vfs

import "errors"

// typeOf: nothing is mapped here, so no file system needs a name.
func typeOf(string) (string, error) { return "", nil }

// Map: there is no call that gets the pages of a mapping for stores.
func (o *osFile) Map(int64, int64) (Mapping, error) { return nil, errors.ErrUnsupported }
