//go:build !linux

package main

import (
	"context"
	"errors"
	"runtime"
)

// startMounted cannot run here.
func (l *lab) startMounted(context.Context, string, ...string) (*child, error) {
	return nil, skip(cannotMount + ": not written for " + runtime.GOOS)
}

// mountSmall cannot run here.
func mountSmall(string, int) (func() error, error) { return nil, errors.ErrUnsupported }

func (d *disk) format(int64) error { return errors.ErrUnsupported }
func (d *disk) mount() error       { return errors.ErrUnsupported }
func (d *disk) unmount() error     { return errors.ErrUnsupported }
func (d *disk) stop() error        { return errors.ErrUnsupported }

func (d *disk) stopStill(c *child, err *error) []string {
	*err = errors.ErrUnsupported
	return c.kill()
}
