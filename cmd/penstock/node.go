package main

import "github.com/penstock/penstock/cmd/penstock/internal/node"

// nodeCmd is the process that the demo starts, kills and starts again. It is
// hidden: it wants the driver at the other end of its standard input.
type nodeCmd struct{}

// Run runs a node until its driver asks it to stop, is gone, or a signal comes.
func (nodeCmd) Run(e *env) error {
	return node.Run(e.ctx, e.stdin, e.stdout, e.stderr)
}
