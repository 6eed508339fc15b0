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
