package registry

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// Plugin is one that wants to be used.
type Plugin struct {
	Type string
	// Name is unique among plugins of its type.
	Name string
	// Endpoint is the socket at which it serves.
	Endpoint string
	// Versions are those of its API that it supports; at least one.
	Versions []string
}

func (p *Plugin) key() [2]string { return [2]string{p.Type, p.Name} }

// Handler uses plugins of one type. Its methods are called concurrently, though never for the same
// name.
type Handler interface {
	// Register takes a plugin, or returns why not. It may take as long as the plugin does, until
	// ctx ends.
	Register(ctx context.Context, p Plugin) error
	// Deregister gives up a plugin that was taken: its socket is gone.
	Deregister(p Plugin)
}

// Watcher watches a folder. Use Run.
type Watcher struct {
	// Dir is the folder. Those in it are watched, too.
	Dir string
	// Handlers are by type.
	Handlers map[string]Handler

	known map[string]*entry // by path
	// results are those of registrations.
	results chan result
	full    bool // too many sockets, and the log says so

	mu sync.Mutex
	// holders are the sockets of plugins that are registered or being so, by type and name.
	// Deregister is called with mu held, so that it does not concern the next plugin of that name.
	holders map[[2]string]*entry
}

const (
	// lookEvery is how often the folder is read. Like the kubelet's reconciler, a plugin is noticed
	// within about a second.
	lookEvery = time.Second
	// mostSockets and mostFolders bound what whoever can write to the folder can cost.
	mostSockets = 128
	mostFolders = 128
	// askMost is how long a plugin may take to say what it is, and to hear what became of it.
	askMost = 10 * time.Second
	// registerMost is how long a handler may take, which asks the plugin more.
	registerMost = 2 * time.Minute
	// againLeast and againMost bound the pause before a plugin that failed is asked again, as with
	// the kubelet.
	againLeast, againMost = 500 * time.Millisecond, 2 * time.Minute
)

// entry is a socket.
type entry struct {
	path string
	is   identity
	// stop ends a registration; nil: none is under way.
	stop context.CancelFunc
	// plugin is the one that is registered; nil: none.
	plugin *Plugin
	tries  int
	next   time.Time // when it is asked again
	told   string    // the failure that was logged last
}

// identity tells a socket from another one at the same path.
type identity struct {
	inode   uint64
	changed unix.Timespec
}

// result is how a registration has ended.
type result struct {
	entry  *entry
	plugin *Plugin // nil: it was not registered
	err    error
}

// Run watches until ctx ends. Plugins stay registered then: the node goes, not they.
func (w *Watcher) Run(ctx context.Context) {
	w.known, w.results, w.holders = map[string]*entry{}, make(chan result), map[[2]string]*entry{}
	var asking sync.WaitGroup
	defer asking.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for told := ""; ; {
		err := w.look(ctx, &asking)
		if err != nil && told != err.Error() {
			klog.ErrorS(err, "Cannot look for plugins; it is tried again", "dir", w.Dir)
		}
		told = fmt.Sprint(err)
		select {
		case <-ctx.Done():
			return
		case r := <-w.results:
			w.settle(r)
		case <-ticker.C:
		}
	}
}

// look compares the folder with what is known.
func (w *Watcher) look(ctx context.Context, asking *sync.WaitGroup) error {
	if err := os.MkdirAll(w.Dir, 0o755); err != nil {
		return err
	}
	there, err := w.sockets()
	if err != nil {
		return err
	}
	for path, e := range w.known {
		if is, found := there[path]; !found || is != e.is {
			w.forget(e)
		}
	}
	now := time.Now()
	for _, path := range slices.Sorted(maps.Keys(there)) {
		e := w.known[path]
		if e == nil {
			e = &entry{path: path, is: there[path]}
			w.known[path] = e
		}
		if e.plugin == nil && e.stop == nil && !now.Before(e.next) {
			w.begin(ctx, asking, e)
		}
	}
	return nil
}

// sockets are those in the folder. Names that begin with a dot are not looked at, and links are not
// followed.
func (w *Watcher) sockets() (map[string]identity, error) {
	found, folders := map[string]identity{}, 0
	err := filepath.WalkDir(w.Dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case path == w.Dir:
			return err
		case err != nil: // it has just gone
			return nil
		case d.IsDir():
			if folders++; strings.HasPrefix(d.Name(), ".") || folders > mostFolders {
				return fs.SkipDir
			}
		case d.Type()&fs.ModeSocket == 0 || strings.HasPrefix(d.Name(), "."):
		case len(found) == mostSockets:
			if !w.full {
				klog.InfoS("There are too many sockets of plugins; the others are not looked at", "dir", w.Dir, "most", mostSockets)
			}
			w.full = true
			return fs.SkipAll
		default:
			var stat unix.Stat_t
			if unix.Lstat(path, &stat) == nil {
				found[path] = identity{stat.Ino, stat.Ctim}
			}
		}
		return nil
	})
	w.full = w.full && len(found) == mostSockets
	return found, err
}

// forget gives up a socket that is gone.
func (w *Watcher) forget(e *entry) {
	delete(w.known, e.path)
	if e.stop != nil {
		e.stop()
	}
	if e.plugin != nil {
		klog.InfoS("A plugin has gone away", "type", e.plugin.Type, "name", e.plugin.Name, "socket", e.path)
		w.giveUp(e, *e.plugin)
	}
}

// giveUp has a plugin given up, unless another has taken its name.
func (w *Watcher) giveUp(e *entry, p Plugin) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if key := p.key(); w.holders[key] == e {
		w.Handlers[p.Type].Deregister(p)
		delete(w.holders, key)
	}
}

// claim gives a plugin its name, or returns who has it.
func (w *Watcher) claim(e, from *entry, p *Plugin) (holder *entry) {
	w.mu.Lock()
	defer w.mu.Unlock()
	key := p.key()
	if holder = w.holders[key]; holder != nil && holder != from {
		return holder
	}
	w.holders[key] = e
	return nil
}

// release gives back the name of a plugin that was not taken.
func (w *Watcher) release(e *entry, p *Plugin) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if key := p.key(); w.holders[key] == e {
		delete(w.holders, key)
	}
}

// begin has a plugin registered, aside.
func (w *Watcher) begin(ctx context.Context, asking *sync.WaitGroup, e *entry) {
	own, stop := context.WithCancel(ctx)
	e.stop = stop
	asking.Go(func() {
		defer stop()
		plugin, err := w.register(own, e)
		select {
		case w.results <- result{e, plugin, err}:
		case <-ctx.Done():
		}
	})
}

// settle records how a registration has ended.
func (w *Watcher) settle(r result) {
	e := r.entry
	e.stop = nil
	switch {
	case r.plugin != nil && w.known[e.path] != e: // its socket went away meanwhile
		w.giveUp(e, *r.plugin)
	case r.plugin != nil:
		e.plugin, e.tries, e.told = r.plugin, 0, ""
		klog.InfoS("A plugin has registered", "type", r.plugin.Type, "name", r.plugin.Name, "socket", e.path, "endpoint", r.plugin.Endpoint)
	default:
		e.next = time.Now().Add(min(againLeast<<min(e.tries, 10), againMost))
		e.tries++
		if text := r.err.Error(); text != e.told && w.known[e.path] == e {
			e.told = text
			klog.ErrorS(r.err, "Cannot register a plugin; it is asked again", "socket", e.path)
		}
	}
}

// answers reports whether somebody listens at a socket.
func answers(ctx context.Context, path string) bool {
	ctx, cancel := context.WithTimeout(ctx, askMost)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err == nil {
		_ = conn.Close()
	}
	return err == nil
}
