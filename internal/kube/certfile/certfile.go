// Package certfile serves a certificate from files, so that one that was renewed is used without a
// restart.
package certfile

import (
	"crypto/tls"
	"crypto/x509"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

// reread is how long a certificate is used before its files are read again.
const reread = time.Minute

// Pair is a certificate with its key.
type Pair struct {
	// Renew, if set, is called with the certificate before the files are read again, and may write
	// them.
	Renew func(*x509.Certificate) error

	certFile, keyFile string

	mu      sync.Mutex
	current *tls.Certificate
	at      time.Time // when it was read
}

// Read reads the files.
func Read(certFile, keyFile string) (*Pair, error) {
	p := &Pair{certFile: certFile, keyFile: keyFile}
	return p, p.read()
}

func (p *Pair) read() error {
	pair, err := tls.LoadX509KeyPair(p.certFile, p.keyFile)
	if err != nil {
		return err
	}
	if pair.Leaf == nil {
		if pair.Leaf, err = x509.ParseCertificate(pair.Certificate[0]); err != nil {
			return err
		}
	}
	p.current, p.at = &pair, time.Now()
	return nil
}

// Newest is the certificate, for [tls.Config.GetCertificate]. The files are read again when a
// connection comes and they have not been for a while. If they cannot be read, the last one is
// used.
func (p *Pair) Newest(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.at) < reread {
		return p.current, nil
	}
	var err error
	if p.Renew != nil {
		err = p.Renew(p.current.Leaf)
	}
	if err == nil {
		err = p.read()
	}
	if err != nil {
		klog.Background().Error(err, "Certificate not read again, the last one is used", "file", p.certFile)
		p.at = time.Now()
	}
	return p.current, nil
}
