package keyring

import (
	"net"
	"net/url"
	"path"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// Login is what a registry is sent. It names no server: the runtime sends it to the registry that
// it pulls from.
type Login struct {
	Username, Password, IdentityToken string
	// Secret is where it comes from; nil: the node's own configuration.
	Secret *v1.Secret `json:"-"`
}

// entry is a registry, or a path on one, and its logins.
type entry struct {
	host, path string
	logins     []Login
}

func (e entry) key() string { return e.host + e.path }

// Keyring maps registries to logins. The zero value is empty.
type Keyring struct {
	// entries in descending order of their keys, so that of two paths on one host the longer comes
	// first; each key once.
	entries []entry
}

// add adds a login for a registry, after the existing ones.
func (k *Keyring) add(registry string, login Login) error {
	if !strings.HasPrefix(registry, "https://") && !strings.HasPrefix(registry, "http://") {
		registry = "https://" + registry
	}
	parsed, err := url.Parse(registry)
	if err != nil {
		return err
	}
	e := entry{host: parsed.Host, path: parsed.Path}
	for _, version := range []string{"/v1/", "/v2/"} {
		if strings.HasPrefix(e.path, version) {
			e.path = e.path[len(version)-1:]
			break
		}
	}
	if e.path == "/" {
		e.path = ""
	}
	i, known := slices.BinarySearchFunc(k.entries, e, func(have, want entry) int { return strings.Compare(want.key(), have.key()) })
	if !known {
		k.entries = slices.Insert(k.entries, i, e)
	}
	k.entries[i].logins = append(k.entries[i].logins, login)
	return nil
}

// dockerHub is the key of the registry that is used for images that name none.
const dockerHub = "index.docker.io"

// For returns the logins to try, in this order, for a repository with its full name
// ("docker.io/library/busybox").
func (k *Keyring) For(repository string) []Login {
	host, rest, _ := strings.Cut(repository, "/")
	var out []Login
	for _, e := range k.entries {
		if matchHost(e.host, host) && strings.HasPrefix("/"+rest, e.path) {
			out = append(out, e.logins...)
		}
	}
	if len(out) > 0 || host != "docker.io" && host != dockerHub {
		return out
	}
	for _, e := range k.entries {
		if e.key() == dockerHub {
			return e.logins
		}
	}
	return nil
}

// matchHost reports whether a host matches a glob: it has the same port and as many labels, and
// each label matches its glob.
func matchHost(glob, host string) bool {
	globs, globPort := labels(glob)
	names, port := labels(host)
	if globPort != port || len(globs) != len(names) {
		return false
	}
	for i := range globs {
		if ok, err := path.Match(globs[i], names[i]); !ok || err != nil {
			return false
		}
	}
	return true
}

func labels(hostPort string) (labels []string, port string) {
	host, port, err := net.SplitHostPort(hostPort)
	if err != nil {
		host, port = hostPort, ""
	}
	return strings.Split(host, "."), port
}
