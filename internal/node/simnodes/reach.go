package simnodes

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/url"
	"slices"
)

// reach turns the many errors of an unreachable API server into one line that says what to do;
// other errors are returned unchanged.
func reach(err error) error {
	var urlErr *url.Error
	var netErr net.Error
	switch {
	case errors.As(err, &urlErr):
		cause := urlErr.Err
		if errors.Is(cause, context.DeadlineExceeded) || errors.As(cause, &netErr) && netErr.Timeout() {
			return &unreachable{host(urlErr.URL), "no answer"}
		}
		return &unreachable{host(urlErr.URL), cause.Error()}
	case errors.Is(err, context.DeadlineExceeded):
		return &unreachable{"it", "no answer"}
	}
	return err
}

type unreachable struct{ server, why string }

func (e *unreachable) Error() string {
	return "the API server (" + e.server + ") cannot be reached: " + e.why +
		": check that the cluster runs, and --kubeconfig or KUBECONFIG"
}

func host(address string) string {
	if u, err := url.Parse(address); err == nil && u.Host != "" {
		return u.Scheme + "://" + u.Host
	}
	return address
}

// sortNatural sorts names that end in numbers as people do: z2 before z10.
func sortNatural(names []string) {
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
	})
}
