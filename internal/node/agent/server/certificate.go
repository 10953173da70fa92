package server

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/util/cert"

	"github.com/berth-k8s/berth/internal/durable"
	"github.com/berth-k8s/berth/internal/kube/certfile"
)

const (
	certificateFile, keyFile = "kubelet.crt", "kubelet.key"
	// renewBefore is how long before its end the node's own certificate is replaced.
	renewBefore = 30 * 24 * time.Hour
)

// KeepCertificate returns the node's self-signed certificate for its name and addresses. It is kept
// in dir, so that clients that have seen it once recognise it.
func KeepCertificate(dir, node string, addresses []net.IP) (func(*tls.ClientHelloInfo) (*tls.Certificate, error), error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	k := kept{filepath.Join(dir, certificateFile), filepath.Join(dir, keyFile), node, addresses}
	pair, err := certfile.Read(k.certFile, k.keyFile)
	if err == nil {
		leaf, _ := pair.Newest(nil)
		err = k.fits(leaf.Leaf)
	}
	if err != nil {
		if err := k.make(); err != nil {
			return nil, err
		}
		if pair, err = certfile.Read(k.certFile, k.keyFile); err != nil {
			return nil, err
		}
	}
	pair.Renew = k.renew
	return pair.Newest, nil
}

// CertificateFiles is a certificate that someone else renews.
func CertificateFiles(certFile, keyFile string) (func(*tls.ClientHelloInfo) (*tls.Certificate, error), error) {
	pair, err := certfile.Read(certFile, keyFile)
	if err != nil {
		return nil, fmt.Errorf("--tls-cert-file: %w", err)
	}
	return pair.Newest, nil
}

// kept is the node's own certificate, in files.
type kept struct {
	certFile, keyFile string
	node              string
	addresses         []net.IP
}

// renew replaces the certificate if it ends soon.
func (k *kept) renew(leaf *x509.Certificate) error {
	if time.Until(leaf.NotAfter) < renewBefore {
		return k.make()
	}
	return nil
}

// fits returns why a certificate has to be replaced.
func (k *kept) fits(leaf *x509.Certificate) error {
	if left := time.Until(leaf.NotAfter); left < renewBefore {
		return fmt.Errorf("it ends in %v", left)
	}
	if err := leaf.VerifyHostname(k.node); err != nil {
		return err
	}
	for _, ip := range k.addresses {
		if err := leaf.VerifyHostname(ip.String()); err != nil {
			return err
		}
	}
	return nil
}

// make writes the key first: a crash in between leaves a pair that does not match, and is replaced.
func (k *kept) make() error {
	certPEM, keyPEM, err := cert.GenerateSelfSignedCertKey(k.node, k.addresses, []string{k.node})
	if err != nil {
		return fmt.Errorf("make a certificate for %s: %w", k.node, err)
	}
	if err := durable.Replace(k.keyFile, keyPEM, 0o600); err != nil {
		return err
	}
	return durable.Replace(k.certFile, certPEM, 0o600)
}
