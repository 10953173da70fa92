package server

import (
	"errors"
	"net/http"
	"strings"
)

// kind is the kind of a request.
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

// route is a parsed path.
type route struct {
	kind           kind
	path           string // as requested
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

// parse parses a path, and rejects ambiguous ones: no name in Kubernetes needs an escape, and
// parent directories have no meaning here.
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

// odd reports whether a character is in no name.
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

// ofPod parses namespace/pod or namespace/pod/uid.
func ofPod(k kind, names []string) route {
	switch len(names) {
	case 2:
		return route{kind: k, namespace: names[0], pod: names[1]}
	case 3:
		return route{kind: k, namespace: names[0], pod: names[1], uid: names[2]}
	}
	return route{}
}

// ofContainer parses namespace/pod/container or namespace/pod/uid/container.
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

// subresources returns the node's subresources that stand for this path; access to one of them
// suffices. They are the kubelet's since v1.36: the narrow ones spare readers the permission for
// nodes/proxy, which allows running commands in any pod.
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

// verb is the verb to authorize. Running something in a container is create, whatever the method:
// WebSockets must be opened by GET, and a user who may read everything on a node must not be able
// to run commands there. (The kubelet uses the method; the API server's own pods/exec requires
// create since v1.35, kubernetes/kubernetes#133515.)
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

// streams reports whether the request takes over its connection.
func (r route) streams() bool { return r.kind == exec || r.kind == attach || r.kind == portForward }

// takes reports whether the path supports the method.
func (r route) takes(method string) bool {
	if r.streams() || r.kind == statsSummary {
		return method == http.MethodGet || method == http.MethodPost
	}
	return method == http.MethodGet
}
