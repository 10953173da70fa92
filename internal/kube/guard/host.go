// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"net"
	"net/http"
	"slices"
	"strings"
)

// Local reports whether the request originates on this machine: through a forwarded port, or from a
// local program. It relies on the connection and not on headers, which a caller can forge.
func Local(r *http.Request) bool {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	return err == nil && net.ParseIP(host).IsLoopback()
}

// Rebound reports whether a request from this machine names a foreign host. If the name of a
// foreign site resolves to this machine, browsers consider this port to be of the same origin as
// the site (DNS rebinding).
func Rebound(r *http.Request) bool {
	return Local(r) && !namesMachine(hostOf(r))
}

// hostOf returns the host named in a request, without a port.
func hostOf(r *http.Request) string {
	name := r.Host
	if host, _, err := net.SplitHostPort(name); err == nil {
		name = host
	}
	return strings.TrimSuffix(strings.Trim(name, "[]"), ".")
}

// namesMachine reports whether a host is localhost or an IP address, and not a foreign name.
func namesMachine(host string) bool {
	return strings.EqualFold(host, "localhost") || net.ParseIP(host) != nil
}

// OnlyNamed refuses requests unless they name one of the hosts, localhost or an IP address.
func OnlyNamed(hosts []string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := hostOf(r)
		if !namesMachine(host) && !slices.ContainsFunc(hosts, func(known string) bool { return strings.EqualFold(known, host) }) {
			Refuse(w, http.StatusMisdirectedRequest, "no such host is served here")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// RefuseRebound refuses rebound requests. It protects ports without authentication from foreign
// pages in the user's browser.
func RefuseRebound(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if Rebound(r) {
			Refuse(w, http.StatusMisdirectedRequest, "use localhost or an address")
			return
		}
		next.ServeHTTP(w, r)
	})
}
