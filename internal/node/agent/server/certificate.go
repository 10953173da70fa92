package server

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/klog/v2"
)

const (
	certificateFile, keyFile = "kubelet.crt", "kubelet.key"
	// renewBefore its end a certificate of the node's own is made anew.
	renewBefore = 30 * 24 * time.Hour
	// reread is how old what is known of a certificate's files may be.
	reread = time.Minute
)

// KeepCertificate is the node's own certificate, signed by itself, for its name and addresses. It
// is kept in dir, so that who has seen it once knows it again.
func KeepCertificate(dir, node string, addresses []net.IP) (func(*tls.ClientHelloInfo) (*tls.Certificate, error), error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	k := &kept{certFile: filepath.Join(dir, certificateFile), keyFile: filepath.Join(dir, keyFile)}
	k.renew = func() error { return k.make(node, addresses) }
	if err := k.read(); err != nil || !k.fits(node, addresses) {
		if err := k.renew(); err != nil {
			return nil, err
		}
	}
	return k.newest, nil
}

// CertificateFiles is a certificate that somebody else renews.
func CertificateFiles(certFile, keyFile string) (func(*tls.ClientHelloInfo) (*tls.Certificate, error), error) {
	k := &kept{certFile: certFile, keyFile: keyFile}
	if err := k.read(); err != nil {
		return nil, fmt.Errorf("--tls-cert-file: %w", err)
	}
	return k.newest, nil
}

// kept is a certificate in files.
type kept struct {
	certFile, keyFile string
	renew             func() error // nil if that is somebody else's business

	mu      sync.Mutex
	current *tls.Certificate
	at      time.Time // when it was read
}

func (k *kept) newest(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if time.Since(k.at) < reread {
		return k.current, nil
	}
	var err error
	if k.renew != nil && time.Until(k.current.Leaf.NotAfter) < renewBefore {
		err = k.renew()
	} else {
		err = k.read()
	}
	if err != nil {
		klog.Background().Error(err, "Certificate not read again, the last one is used", "file", k.certFile)
		k.at = time.Now()
	}
	return k.current, nil
}

func (k *kept) read() error {
	pair, err := tls.LoadX509KeyPair(k.certFile, k.keyFile)
	if err != nil {
		return err
	}
	if pair.Leaf == nil {
		if pair.Leaf, err = x509.ParseCertificate(pair.Certificate[0]); err != nil {
			return err
		}
	}
	k.current, k.at = &pair, time.Now()
	return nil
}

func (k *kept) fits(node string, addresses []net.IP) bool {
	if time.Until(k.current.Leaf.NotAfter) < renewBefore || k.current.Leaf.VerifyHostname(node) != nil {
		return false
	}
	for _, ip := range addresses {
		if k.current.Leaf.VerifyHostname(ip.String()) != nil {
			return false
		}
	}
	return true
}

// make writes the key first: a crash in between leaves a pair that does not fit, and is made again.
func (k *kept) make(node string, addresses []net.IP) error {
	certPEM, keyPEM, err := cert.GenerateSelfSignedCertKey(node, addresses, []string{node})
	if err != nil {
		return fmt.Errorf("make a certificate for %s: %w", node, err)
	}
	if err := replace(k.keyFile, keyPEM); err != nil {
		return err
	}
	if err := replace(k.certFile, certPEM); err != nil {
		return err
	}
	return k.read()
}

func replace(path string, content []byte) error {
	temporary := path + ".tmp"
	if err := os.WriteFile(temporary, content, 0o600); err != nil {
		return err
	}
	return os.Rename(temporary, path)
}
