package serve

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"sync"
	"time"

	"k8s.io/client-go/util/cert"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/klog/v2"
)

func (o *Options) tlsConfig() (*tls.Config, error) {
	version, err := cliflag.TLSVersion(o.MinTLSVersion)
	if err != nil {
		return nil, err
	}
	suites, err := cliflag.TLSCipherSuites(o.CipherSuites)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{MinVersion: version, CipherSuites: suites, NextProtos: []string{"http/1.1"}}
	if o.ClientCAFile != "" {
		pool, err := cert.NewPool(o.ClientCAFile)
		if err != nil {
			return nil, fmt.Errorf("--client-ca-file: %w", err)
		}
		config.ClientCAs = pool
		config.ClientAuth = tls.VerifyClientCertIfGiven
	}
	if o.CertFile == "" {
		own, err := selfSigned()
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{own}
		return config, nil
	}
	files := &certificate{certFile: o.CertFile, keyFile: o.KeyFile}
	if err := files.read(); err != nil {
		return nil, fmt.Errorf("--tls-cert-file: %w", err)
	}
	config.GetCertificate = files.newest
	return config, nil
}

func selfSigned() (tls.Certificate, error) {
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	certPEM, keyPEM, err := cert.GenerateSelfSignedCertKey(host, nil, []string{"localhost"})
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("make a certificate: %w", err)
	}
	return tls.X509KeyPair(certPEM, keyPEM)
}

// reread is how old what is known of a certificate's files may be.
const reread = time.Minute

// certificate is read again when a connection comes and it has not been for a
// while, so that one that was renewed is used without a restart.
type certificate struct {
	certFile, keyFile string

	mu      sync.Mutex
	current *tls.Certificate
	at      time.Time
}

func (c *certificate) read() error {
	pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		return err
	}
	if pair.Leaf == nil {
		if pair.Leaf, err = x509.ParseCertificate(pair.Certificate[0]); err != nil {
			return err
		}
	}
	c.current, c.at = &pair, time.Now()
	return nil
}

func (c *certificate) newest(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.at) > reread {
		if err := c.read(); err != nil {
			klog.Background().Error(err, "Certificate not read again, the last one is used", "file", c.certFile)
			c.at = time.Now()
		}
	}
	return c.current, nil
}
