package server

import (
	"errors"
	"net/http"
	"strings"
)

// kind is what a request wants.
type kind int

const (
	unknown kind = iota
	pods
	containerLogs
	exec
	attach
	portForward
	healthz
	configz
	statsSummary
	metrics
	nodeLogs
)

// route is a path, taken apart.
type route struct {
	kind           kind
	path           string // as it was asked for
	namespace, pod string
	uid, container string
	check          string // of healthz: a single one, or ""
}

// maxPath is more than the longest names of a namespace, a pod and a container take together.
const maxPath = 1024

var (
	errPath     = errors.New("the path must consist of plain names, without escapes, empty parts, \".\" or \"..\"")
	errPathLong = errors.New("the path is too long")
)

// parse takes a path apart, and refuses what could mean two things: no name in Kubernetes needs an
// escape, and what leads upwards leads nowhere here.
func parse(path, escaped string) (route, error) {
	if len(path) > maxPath || len(escaped) > maxPath {
		return route{}, errPathLong
	}
	if path != escaped || !strings.HasPrefix(path, "/") {
		return route{}, errPath
	}
	parts := strings.Split(strings.TrimSuffix(path[1:], "/"), "/")
	for i, part := range parts {
		if part == "." || part == ".." || (part == "" && (i > 0 || path != "/")) || strings.ContainsFunc(part, odd) {
			return route{}, errPath
		}
	}
	r := find(parts)
	r.path = path
	return r, nil
}

// odd are letters that are in no name.
func odd(r rune) bool { return r <= ' ' || r >= 0x7f || r == '\\' }

func find(parts []string) route {
	first, rest := parts[0], parts[1:]
	switch {
	case first == "pods" && len(rest) == 0:
		return route{kind: pods}
	case first == "configz" && len(rest) == 0:
		return route{kind: configz}
	case first == "healthz" && len(rest) == 0:
		return route{kind: healthz}
	case first == "healthz" && len(rest) == 1:
		return route{kind: healthz, check: rest[0]}
	case first == "stats" && len(rest) == 1 && rest[0] == "summary":
		return route{kind: statsSummary}
	case first == "metrics":
		return route{kind: metrics}
	case first == "logs":
		return route{kind: nodeLogs}
	case first == "containerLogs" && len(rest) == 3:
		return route{kind: containerLogs, namespace: rest[0], pod: rest[1], container: rest[2]}
	case first == "portForward":
		return ofPod(portForward, rest)
	case first == "exec":
		return ofContainer(exec, rest)
	case first == "attach":
		return ofContainer(attach, rest)
	}
	return route{}
}

// ofPod is namespace/pod or namespace/pod/uid.
func ofPod(k kind, names []string) route {
	switch len(names) {
	case 2:
		return route{kind: k, namespace: names[0], pod: names[1]}
	case 3:
		return route{kind: k, namespace: names[0], pod: names[1], uid: names[2]}
	}
	return route{}
}

// ofContainer is namespace/pod/container or namespace/pod/uid/container.
func ofContainer(k kind, names []string) route {
	if len(names) < 3 {
		return route{}
	}
	last := len(names) - 1
	r := ofPod(k, names[:last])
	r.container = names[last]
	if r.kind == unknown {
		return route{}
	}
	return r
}

// subresources are those of the node that stand for this path; to be allowed one of them is enough.
// They are kubelet's since v1.36: the narrow ones spare readers the right to nodes/proxy, which is
// that to run commands in any pod.
func (r route) subresources() []string {
	first, _, _ := strings.Cut(r.path[1:], "/")
	switch first {
	case "pods", "runningpods":
		return []string{"pods", "proxy"}
	case "healthz", "configz":
		return []string{first, "proxy"}
	case "stats", "metrics", "checkpoint", "statusz":
		return []string{first}
	case "flagz":
		return []string{"configz"}
	case "logs":
		return []string{"log"}
	}
	return []string{"proxy"}
}

// verb is what is asked for. To run something in a container is to create, however it is asked for:
// WebSockets must be opened by GET, and who may read all of a node may not therefore run commands
// there. (Kubelet takes the method; the API server's own pods/exec asks for create since v1.35,
// kubernetes/kubernetes#133515.)
func (r route) verb(method string) string {
	switch r.kind {
	case exec, attach, portForward:
		return "create"
	}
	switch method {
	case http.MethodGet:
		return "get"
	case http.MethodPost:
		return "create"
	case http.MethodPut:
		return "update"
	case http.MethodPatch:
		return "patch"
	case http.MethodDelete:
		return "delete"
	}
	return ""
}

// streams says that the request is about a connection of its own.
func (r route) streams() bool { return r.kind == exec || r.kind == attach || r.kind == portForward }

// takes says whether the method is one for this path.
func (r route) takes(method string) bool {
	if r.streams() || r.kind == statsSummary {
		return method == http.MethodGet || method == http.MethodPost
	}
	return method == http.MethodGet
}
