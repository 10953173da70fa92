package whatif

import (
	"fmt"
	"time"

	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// returning is a pod of a list that comes back to where it may not stay, under ever
// new names.
type returning struct {
	at   int              // its index in the list
	last simulate.Seconds // when it, or what has replaced it, left last
}

// foldRecurring lists each pod once that comes back to where it may not stay, with how
// long it stays each time. later are the evictions to come; those of pods that have come
// back are left out of rest. Neither list is changed. For example, a pod that tolerates
// its node's taint for 300s:
//
//	web-1 leaves after 300s, comes back as web-2
//	web-2 leaves after 600s, comes back as web-3    -> one line: web-1, every 300s
//	web-3 is due after 900s
func foldRecurring(list []Leaving, later []simulate.Eviction) (once []Leaving, rest []simulate.Eviction) {
	once, rest = list[:0:0], later[:0:0]  // in JSON, an empty list stays one
	back := map[simulate.Name]returning{} // the replacements, by name
	follow := func(l *Leaving, r returning) {
		if l.Next != nil {
			back[simulate.Name{Namespace: l.Namespace, Name: l.Next.Name}] = r
		}
	}
	stays := func(r returning, until simulate.Seconds) {
		if once[r.at].Every == 0 {
			once[r.at].Every = until - r.last
		}
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

// atOnce is how long the world takes to evict a pod that may not stay at all: controllers
// need some time. It is the second that package simulate lets pass.
const atOnce = simulate.Seconds(time.Second)

// recursText says how often a pod leaves that comes back to where it may not stay, or
// "". It continues thenText.
func (l *Leaving) recursText() string {
	switch {
	case l.Every == 0:
		return ""
	case l.Every <= atOnce:
		return ", where it may not stay either: it leaves again at once, each time"
	}
	return fmt.Sprintf(", where it may not stay either: it leaves again every %s", textOf(l.Every))
}
