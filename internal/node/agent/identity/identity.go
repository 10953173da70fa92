// Package identity gets a machine the certificate of a node, and keeps it fresh: as the kubelet
// does, with client-go's own certificate manager. A bootstrap kubeconfig is good for asking once;
// what is signed is the name system:node:NAME in the group system:nodes, for which the Node
// authorizer lets in what the node's own pods need, and no more. The certificate lies in a file, in
// which it is renewed long before it ends; clients read it from there again.
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
	// patience is how long a certificate is waited for: somebody may have to approve it.
	patience = 15 * time.Minute
	// look is how often it is looked for.
	look = 200 * time.Millisecond
)

// Options say whose certificate is wanted, where it is kept, and who vouches for the machine.
type Options struct {
	Bootstrap string // a kubeconfig
	Dir       string
	Node      string
}

// Identity is a node's.
type Identity struct {
	// Config is for clients in the node's name.
	Config *rest.Config

	manager certificate.Manager
}

// Obtain returns the identity of the node: the one that is kept, if the cluster still knows it, or
// a new one, for which it waits. The certificate is renewed until Stop.
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
		// The bootstrap token asks for the first one, and each certificate for the next.
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

// forgetStrange takes away a certificate of another node's, or of another cluster's: the API server
// does not know it. That it cannot be asked is no reason.
func forgetStrange(ctx context.Context, own *rest.Config, node string) error {
	kept, err := tls.LoadX509KeyPair(own.CertFile, own.KeyFile)
	if err != nil {
		return nil // there is none, or the manager says what is wrong with it
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
