package server

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
	"k8s.io/klog/v2"
)

// Authorities are the signers of client certificates.
type Authorities interface {
	// VerifyOptions are for checking a certificate now; false if no signer is known.
	VerifyOptions() (x509.VerifyOptions, bool)
	// Run keeps them up to date until the context ends.
	Run(ctx context.Context)
}

// AuthorityOptions say where the signers are found.
type AuthorityOptions struct {
	// File contains them in PEM; empty: those of the cluster.
	File string
	// Client reads kube-system/extension-apiserver-authentication, where the API server publishes
	// the CAs that it trusts.
	Client kubernetes.Interface
	// Config is that of the client: its CA is accepted until the published ones have been read.
	// That gives it no new power: it vouches for the API server, which decides about all callers.
	Config *rest.Config
}

// lookAgain is how often signers are read again.
const lookAgain = time.Minute

type authorities struct {
	options AuthorityOptions
	pool    atomic.Pointer[x509.CertPool]
}

// ClusterAuthorities are those of the cluster that the node belongs to.
func ClusterAuthorities(o AuthorityOptions) (Authorities, error) {
	a := &authorities{options: o}
	if o.File != "" {
		pem, err := os.ReadFile(o.File)
		if err != nil {
			return nil, fmt.Errorf("--client-ca-file: %w", err)
		}
		if err := a.set(pem); err != nil {
			return nil, fmt.Errorf("--client-ca-file: %s: %w", o.File, err)
		}
		return a, nil
	}
	pem := o.Config.CAData
	if len(pem) == 0 && o.Config.CAFile != "" {
		var err error
		if pem, err = os.ReadFile(o.Config.CAFile); err != nil {
			return nil, fmt.Errorf("CA of the API server: %w", err)
		}
	}
	if len(pem) > 0 {
		if err := a.set(pem); err != nil {
			return nil, fmt.Errorf("CA of the API server: %w", err)
		}
	}
	return a, nil
}

func (a *authorities) set(pem []byte) error {
	certificates, err := cert.ParseCertsPEM(pem)
	if err != nil {
		return errors.New("no certificate in PEM")
	}
	pool := x509.NewCertPool()
	for _, c := range certificates {
		pool.AddCert(c)
	}
	a.pool.Store(pool)
	return nil
}

func (a *authorities) VerifyOptions() (x509.VerifyOptions, bool) {
	pool := a.pool.Load()
	return x509.VerifyOptions{Roots: pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, pool != nil
}

func (a *authorities) Run(ctx context.Context) {
	ticker := time.NewTicker(lookAgain)
	defer ticker.Stop()
	for {
		// If the CAs cannot be read now, the last ones stay in use. On some clusters a node's
		// credentials may not read the ConfigMap, which is no error.
		if err := a.read(ctx); err != nil {
			klog.FromContext(ctx).V(2).Info("Authorities of client certificates not read, the last ones are used", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (a *authorities) read(ctx context.Context) error {
	if a.options.File != "" {
		pem, err := os.ReadFile(a.options.File)
		if err != nil {
			return err
		}
		return a.set(pem)
	}
	published, err := a.options.Client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, "extension-apiserver-authentication", metav1.GetOptions{})
	if err != nil {
		return err
	}
	if pem := published.Data["client-ca-file"]; pem != "" {
		return a.set([]byte(pem))
	}
	return nil
}
