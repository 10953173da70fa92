// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package whatif

import (
	"cmp"
	"fmt"
	"time"

	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// returning is a listed pod that repeatedly returns, under new names, to a node it may not stay on.
type returning struct {
	at   int              // index in the list
	last simulate.Seconds // time of the last departure of the pod or of its replacements
}

// foldRecurring lists a pod only once if it repeatedly returns to a node it may not stay on, with
// the duration of each stay. later lists the pending evictions; rest omits the evictions of
// returned pods. Neither list is modified. For example, a pod that tolerates its node's taint for
// 300s:
//
//	web-1 leaves after 300s, comes back as web-2
//	web-2 leaves after 600s, comes back as web-3    -> one line: web-1, every 300s
//	web-3 is due after 900s
func foldRecurring(list []Leaving, later []simulate.Eviction) (once []Leaving, rest []simulate.Eviction) {
	once, rest = list[:0:0], later[:0:0]  // keeps an empty list non-nil for JSON
	back := map[simulate.Name]returning{} // replacements by name
	follow := func(l *Leaving, r returning) {
		if l.Next != nil {
			back[simulate.Name{Namespace: l.Namespace, Name: l.Next.Name}] = r
		}
	}
	stays := func(r returning, until simulate.Seconds) {
		once[r.at].Every = cmp.Or(once[r.at].Every, until-r.last)
	}
	for i := range list {
		l := &list[i]
		r, known := back[simulate.Name{Namespace: l.Namespace, Name: l.Name}]
		if !l.Again || !known {
			once = append(once, *l)
			follow(l, returning{len(once) - 1, l.After})
			continue
		}
		stays(r, l.After)
		follow(l, returning{r.at, l.After})
	}
	for _, e := range later {
		if r, known := back[simulate.Name{Namespace: e.Namespace, Name: e.Name}]; known {
			stays(r, e.After)
		} else {
			rest = append(rest, e)
		}
	}
	return once, rest
}

// atOnce is the delay until a pod that may not stay at all is evicted: the second that package
// simulate allows controllers to react.
const atOnce = simulate.Seconds(time.Second)

// recursText describes the interval at which a pod leaves a node it may not stay on, or returns "".
// It continues thenText.
func (l *Leaving) recursText() string {
	switch {
	case l.Every == 0:
		return ""
	case l.Every <= atOnce:
		return ", where it may not stay either: it is evicted again immediately, each time"
	}
	return fmt.Sprintf(", where it may not stay either: it is evicted again every %s", textOf(l.Every))
}
