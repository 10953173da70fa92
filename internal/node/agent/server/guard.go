package server

import (
	"crypto/tls"
	"net/http"

	authorizationv1 "k8s.io/api/authorization/v1"
	clientcert "k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/kube/guard"
)

// gate authenticates and authorizes callers.
type gate struct {
	guard        *guard.Guard
	node         string
	certificates *clientcert.Authenticator
}

func newGate(client kubernetes.Interface, node string, a Authorities) *gate {
	return &gate{
		guard: guard.New(client), node: node,
		certificates: clientcert.NewDynamic(a.VerifyOptions, clientcert.CommonNameUserConversion),
	}
}

// who returns the user behind a request; nil if unknown. It removes the credentials from the
// request: the container runtime must not see them.
func (g *gate) who(r *http.Request) (user.Info, error) {
	token := guard.Bearer(r)
	r.Header.Del("Authorization")
	if response, ok, err := g.certificates.AuthenticateRequest(r); err == nil && ok && response.User.GetName() != "" {
		return response.User, nil
	} else if err != nil {
		klog.FromContext(r.Context()).V(2).Info("Client certificate refused", "from", r.RemoteAddr, "err", err)
	}
	if token == "" {
		return nil, nil
	}
	return g.guard.Who(r.Context(), guard.Source(r.RemoteAddr), token)
}

// signed reports whether the client has presented a certificate that is accepted here.
func (g *gate) signed(state *tls.ConnectionState) bool {
	if len(state.PeerCertificates) == 0 {
		return false
	}
	_, ok, err := g.certificates.AuthenticateRequest(&http.Request{TLS: state})
	return err == nil && ok
}

// may reports whether the user is authorized for one of the subresources.
func (g *gate) may(r *http.Request, u user.Info, verb string, subresources []string) (bool, error) {
	for _, subresource := range subresources {
		allowed, err := g.guard.May(r.Context(), guard.Source(r.RemoteAddr), u, authorizationv1.SubjectAccessReviewSpec{
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Verb: verb, Version: "v1", Resource: "nodes", Subresource: subresource, Name: g.node,
			},
		})
		if allowed || err != nil {
			return allowed, err
		}
	}
	return false, nil
}
