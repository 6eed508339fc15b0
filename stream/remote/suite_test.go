package remote_test

import (
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/penstocktest"
	"github.com/penstock/penstock/stream"
	"github.com/penstock/penstock/stream/remote"
)

// The same cases as for a consumer in the process hold across a connection:
// one that is good, one that is slow, and one whose every second life ends
// with an answer on its way.
func TestConsumerAcrossAConnection(t *testing.T) {
	for name, prepare := range map[string]func(n *network){
		"good": func(*network) {},
		"slow": func(n *network) { n.delay = 700 * time.Millisecond },
		"answers are lost": func(n *network) {
			n.cut = func(conn int, line string) bool { return conn%2 == 1 && isAnswer(line) }
		},
		"slow, and answers are lost": func(n *network) {
			n.delay = 300 * time.Millisecond
			n.cut = func(conn int, line string) bool { return conn%3 != 0 && isAnswer(line) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			penstocktest.StreamConsumerInBubble(t, func(t *testing.T, far stream.Consumer) stream.Consumer {
				n := newNetwork(t, remote.OwnerConfig{})
				prepare(n)
				n.subscriber(remote.SubscriberConfig{
					Consumer: func(stream.SubscriptionRecord) (stream.Consumer, error) { return far, nil },
				})
				return patient{n.owner}
			})
		})
	}
}

func isAnswer(line string) bool {
	return strings.HasPrefix(line, `{"type":"answer"`) || strings.HasPrefix(line, `{"type":"position"`) || strings.HasPrefix(line, `{"type":"error"`)
}
