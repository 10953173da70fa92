package guard

import (
	"net"
	"net/http"
	"strings"
)

// Local reports whether the request comes from this machine: through a port that is forwarded, or
// from a program here. It goes by the connection and not by headers, which a caller can write.
func Local(r *http.Request) bool {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	return err == nil && net.ParseIP(host).IsLoopback()
}

// Rebound reports whether a request from this machine names a host that is not this machine: a
// foreign site whose name leads here would be of the same origin for the browser (DNS rebinding).
func Rebound(r *http.Request) bool {
	if !Local(r) {
		return false
	}
	name := r.Host
	if host, _, err := net.SplitHostPort(name); err == nil {
		name = host
	}
	name = strings.Trim(name, "[]")
	return !strings.EqualFold(name, "localhost") && net.ParseIP(name) == nil
}

// RefuseRebound serves requests that do not come through a foreign name. It is for ports without
// authentication: a page in the user's browser must not be able to read them.
func RefuseRebound(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if Rebound(r) {
			Refuse(w, http.StatusMisdirectedRequest, "use localhost or an address")
			return
		}
		next.ServeHTTP(w, r)
	})
}
