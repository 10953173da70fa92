// Package identity obtains a node's client certificate and renews it, as the kubelet does, with
// client-go's certificate manager. A bootstrap kubeconfig is used only for the first request. The
// certificate is for the user system:node:NAME in the group system:nodes, to whom the Node
// authorizer grants what the node's own pods need, and no more. It is kept in a file and renewed
// there long before it expires; clients reload it.
package identity

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"os"
	"path/filepath"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/certificate"
	"k8s.io/klog/v2"
)

const (
	// pair is how the kubelet names its files: pair-current.pem.
	pair = "kubelet-client"
	// nodes is the group of the nodes' certificates.
	nodes = "system:nodes"
	// patience is how long to wait for a certificate: somebody may have to approve the request.
	patience = 15 * time.Minute
	// look is how often to check whether it has been issued.
	look = 200 * time.Millisecond
)

// Options are the node, the folder that keeps its certificate, and the credentials of the first
// request.
type Options struct {
	Bootstrap string // a kubeconfig
	Dir       string
	Node      string
}

// Identity is a node's client certificate, which is renewed until Stop.
type Identity struct {
	// Config is for clients that act as the node.
	Config *rest.Config

	manager certificate.Manager
}

// Obtain returns the node's identity: the stored one if the cluster still accepts it, otherwise a
// new one, for which it waits. The certificate is renewed until Stop.
func Obtain(ctx context.Context, o Options) (*Identity, error) {
	bootstrap, err := clientcmd.BuildConfigFromFlags("", o.Bootstrap)
	if err != nil {
		return nil, fmt.Errorf("--bootstrap-kubeconfig: %w", err)
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("folder of the node's certificate: %w", err)
	}
	own := rest.AnonymousClientConfig(bootstrap)
	own.CertFile = filepath.Join(o.Dir, pair+"-current.pem")
	own.KeyFile = own.CertFile
	if err := forgetStrange(ctx, own, o.Node); err != nil {
		return nil, err
	}
	store, err := certificate.NewFileStore(pair, o.Dir, o.Dir, "", "")
	if err != nil {
		return nil, fmt.Errorf("the node's certificate in %s: %w", o.Dir, err)
	}
	manager, err := certificate.NewManager(&certificate.Config{
		// The bootstrap token requests the first certificate, and each certificate the next.
		ClientsetFn: func(current *tls.Certificate) (kubernetes.Interface, error) {
			if current == nil {
				return kubernetes.NewForConfig(bootstrap)
			}
			return kubernetes.NewForConfig(own)
		},
		Template:         &x509.CertificateRequest{Subject: pkix.Name{CommonName: userOf(o.Node), Organization: []string{nodes}}},
		SignerName:       certificatesv1.KubeAPIServerClientKubeletSignerName,
		GetUsages:        certificate.DefaultKubeletClientGetUsages,
		CertificateStore: store,
	})
	if err != nil {
		return nil, fmt.Errorf("the node's certificate: %w", err)
	}
	manager.Start()
	err = wait.PollUntilContextTimeout(ctx, look, patience, true, func(context.Context) (bool, error) { return manager.Current() != nil, nil })
	if err != nil {
		manager.Stop()
		return nil, fmt.Errorf("no certificate for node %s: %w: check that the token in %s is valid and that the request is approved (kubectl get csr)", o.Node, err, o.Bootstrap)
	}
	return &Identity{Config: own, manager: manager}, nil
}

// Stop ends the renewal.
func (i *Identity) Stop() { i.manager.Stop() }

func userOf(node string) string { return "system:node:" + node }

// forgetStrange removes a stored certificate that is for another node, or that the API server
// rejects because it is another cluster's. If the API server cannot be reached, the certificate
// stays.
func forgetStrange(ctx context.Context, own *rest.Config, node string) error {
	kept, err := tls.LoadX509KeyPair(own.CertFile, own.KeyFile)
	if err != nil {
		return nil // there is none, or the manager will report what is wrong with it
	}
	strange := kept.Leaf == nil || kept.Leaf.Subject.CommonName != userOf(node)
	if !strange {
		client, err := kubernetes.NewForConfig(own)
		if err != nil {
			return err
		}
		_, err = client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		strange = apierrors.IsUnauthorized(err)
	}
	if !strange {
		return nil
	}
	klog.FromContext(ctx).Info("The certificate that is kept is not of this node in this cluster; asking for another", "file", own.CertFile)
	return os.Remove(own.CertFile)
}
