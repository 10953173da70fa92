package server

import (
	"time"

	"github.com/berth-k8s/berth/internal/kube/guard"
)

// limits bound what a client may hold open. Zero values mean the defaults.
type limits struct {
	connections guard.Bounds  // at once
	header      int           // bytes of a request's line and headers
	headerTime  time.Duration // from the connection to the end of the headers
	requestTime time.Duration // to read a request and write its answer, unless it is a stream
	idle        time.Duration // between requests
	stall       time.Duration // that the reader of a log may read nothing
	drain       time.Duration // that requests may still take when the server ends
}

func (l limits) withDefaults() limits {
	if l.connections == (guard.Bounds{}) {
		// Admitted allows four for every pod of a full node, and some more. All calls of the API
		// server come from one source, and each counts as a stranger's until its headers have
		// arrived. What strangers send is held in memory until they are identified: a token has at
		// most 16 KiB, and only clients with a certificate may send more.
		l.connections = guard.Bounds{Strangers: 192, PerSource: 128, Admitted: 512, Unknown: 64 << 10}
	}
	if l.header == 0 {
		// The command of kubectl exec is in the URL: Linux takes 128 KiB in an argument, which
		// escaped are up to 384.
		l.header = 512 << 10
	}
	if l.headerTime == 0 {
		l.headerTime = 10 * time.Second
	}
	if l.requestTime == 0 {
		l.requestTime = time.Minute
	}
	if l.idle == 0 {
		l.idle = 90 * time.Second
	}
	if l.stall == 0 {
		// A reader may pause, as with a pager.
		l.stall = 30 * time.Minute
	}
	if l.drain == 0 {
		l.drain = 2 * time.Second
	}
	return l
}
