package certs

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"
)

// LoadPublic reads a chain and its key that no authority of ours has to have signed:
// those that the public API shows. It refuses a key that isn't the certificate's, and
// dates that don't hold now.
func LoadPublic(cert, key string, now time.Time) (*tls.Certificate, error) {
	pair, err := loadPair(cert, key)
	if err != nil {
		return nil, err
	}
	if err := checkDates(pair.Leaf, now); err != nil {
		return nil, fmt.Errorf("load certificate %s: %w", cert, err)
	}
	return pair, nil
}

func loadPair(cert, key string) (*tls.Certificate, error) {
	pair, err := readPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("load certificate %s with key %s: %w", cert, key, err)
	}
	if pair.Leaf == nil {
		return nil, fmt.Errorf("load certificate %s: no certificate in it", cert)
	}
	return &pair, nil
}

func readPair(cert, key string) (tls.Certificate, error) {
	certPEM, err := readFile(cert)
	if err != nil {
		return tls.Certificate{}, err
	}
	keyPEM, err := readFile(key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(certPEM, keyPEM)
}

// checkChain refuses a certificate that peers who trust the file ca would refuse. The
// error does not change with the time, so that the same one can be told from another.
func checkChain(pair *tls.Certificate, roots *x509.CertPool, ca string, now time.Time) error {
	if err := checkDates(pair.Leaf, now); err != nil {
		return err
	}
	between := x509.NewCertPool()
	for _, der := range pair.Certificate[1:] {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return fmt.Errorf("its chain: %w", err)
		}
		between.AddCert(c)
	}
	_, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, new(x509.UnknownAuthorityError)):
		return fmt.Errorf("no authority in %s that is valid now has signed it", ca)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return fmt.Errorf("its chain to %s: %w", ca, checkDates(invalid.Cert, now))
	case err != nil:
		return fmt.Errorf("its chain to %s: %w", ca, err)
	}
	return nil
}

// checkDates refuses a certificate that isn't valid yet or no longer.
func checkDates(c *x509.Certificate, now time.Time) error {
	switch {
	case now.Before(c.NotBefore):
		return fmt.Errorf("it is not valid before %s; is this machine's clock right?", c.NotBefore.UTC().Format(time.RFC3339))
	case now.After(c.NotAfter):
		return fmt.Errorf("it has ended: it was valid until %s", c.NotAfter.UTC().Format(time.RFC3339))
	}
	return nil
}
