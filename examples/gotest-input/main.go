// Command gotest-input pipes the JSON lines of `go test -json` into the demo:
//
//	go test -json ./demand ./settle | penstock demo --input - --key Package --json
//
// so that real events of a real program go through every group of the demo,
// in the order of their package, and are counted at the end. It is a program
// rather than a line of shell so that it runs on every platform.
//
//	go run ./examples/gotest-input [PACKAGE...]
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
)

func main() {
	packages := os.Args[1:]
	if len(packages) == 0 {
		packages = []string{"./demand", "./settle"}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, packages, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "gotest-input:", err)
		os.Exit(1)
	}
}

// run tests the packages, sends each line through the demo, and writes what
// the demo says.
func run(ctx context.Context, packages []string, stdout, stderr io.Writer) error {
	stderr = &locked{w: stderr} // two processes write to it
	root, err := moduleRoot(ctx)
	if err != nil {
		return err
	}
	temp, err := os.MkdirTemp("", "gotest-input")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(temp) }()
	binary := filepath.Join(temp, "penstock.exe") // the ending only matters on windows
	build := exec.CommandContext(ctx, "go", "build", "-o", binary, ".")
	build.Dir = filepath.Join(root, "cmd", "penstock")
	build.Env = append(os.Environ(), "GOWORK=off")
	build.Stderr = stderr
	if err := build.Run(); err != nil {
		return fmt.Errorf("go build: %w", err)
	}
	test := exec.CommandContext(ctx, "go", append([]string{"test", "-json", "-count=1"}, packages...)...)
	test.Dir = root
	test.Stderr = stderr
	demo := exec.CommandContext(ctx, binary, "demo", "--input", "-", "--key", "Package", "--json")
	demo.Stdout, demo.Stderr = stdout, stderr
	if demo.Stdin, err = test.StdoutPipe(); err != nil {
		return err
	}
	if err := errors.Join(demo.Start(), test.Start()); err != nil {
		return err
	}
	demoErr := demo.Wait() // it reads the pipe to its end, before test is waited for
	return errors.Join(demoErr, test.Wait())
}

// moduleRoot returns the folder of the root module.
func moduleRoot(ctx context.Context) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/penstock/penstock")
	out, err := cmd.Output()
	return strings.TrimSpace(string(out)), err
}

// locked is a writer for several goroutines.
type locked struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}
