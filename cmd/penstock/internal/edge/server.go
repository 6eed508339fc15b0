package edge

import (
	"log/slog"
	"net/http"
	"time"
)

// Limits of the server around an edge.
const (
	headerTimeout  = 10 * time.Second
	readTimeout    = 30 * time.Second // head and body: a slow body is cut
	writeTimeout   = 60 * time.Second // from the end of the head to the end of the answer
	idleTimeout    = 2 * time.Minute
	maxHeaderBytes = 16 << 10
)

// NewServer returns an HTTP server with the limits that a public face needs:
// on headers (16 KiB, 10 s), on the time to read a body (30 s) and to answer
// (60 s), and on idle connections. It has no address; the caller serves a
// listener with it, which must be on loopback: the edge has no authentication.
func NewServer(h http.Handler, logger *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(logger.Handler(), slog.LevelWarn), // handlers that panicked
	}
}
