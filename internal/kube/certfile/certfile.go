// Package certfile reads certificates from files, again and again, so that those that were renewed
// are used without a restart.
package certfile

import (
	"crypto/tls"
	"crypto/x509"
	"sync"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/klog/v2"
)

// reread is how long certificates are used before their files are read again. The files are not
// watched: they are read when a connection comes.
const reread = time.Minute

// Pair is a certificate with its key, as the files had them when they were last read. Its methods
// may be called from any goroutine.
type Pair struct {
	// Renew, if set, is called with the certificate before the files are read again, and may write
	// them.
	Renew func(*x509.Certificate) error

	certFile, keyFile string

	mu      sync.Mutex
	current *tls.Certificate
	at      time.Time // when it was read
}

// Read reads the files, and is an error if they are missing or do not belong together. Later such
// errors are only logged (Newest).
func Read(certFile, keyFile string) (*Pair, error) {
	p := &Pair{certFile: certFile, keyFile: keyFile}
	return p, p.read()
}

// read reads both files anew. With an error nothing changes. Without Leaf, which Go may leave out,
// Renew could not see when the certificate ends.
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

// Bundle is the certificates of CAs. Its methods may be called from any goroutine.
type Bundle struct {
	file string

	mu      sync.Mutex
	current *x509.CertPool
	at      time.Time // when it was read
}

// ReadBundle reads the file.
func ReadBundle(file string) (*Bundle, error) {
	b := &Bundle{file: file}
	return b, b.read()
}

// read reads the file anew. With an error nothing changes.
func (b *Bundle) read() (err error) {
	pool, err := cert.NewPool(b.file)
	if err == nil {
		b.current, b.at = pool, time.Now()
	}
	return err
}

// Newest is the CAs. The file is read again if it has not been for a while. If it cannot be read,
// the last ones are used.
func (b *Bundle) Newest() *x509.CertPool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if time.Since(b.at) < reread {
		return b.current
	}
	if err := b.read(); err != nil {
		klog.Background().Error(err, "CAs not read again, the last ones are used", "file", b.file)
		b.at = time.Now()
	}
	return b.current
}
