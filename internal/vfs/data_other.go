//go:build !linux

package vfs

// Data implements [File]: anything may hold data.
func (o *osFile) Data(off int64) (from, to int64, err error) {
	size, err := o.Size()
	return min(off, size), size, err
}
