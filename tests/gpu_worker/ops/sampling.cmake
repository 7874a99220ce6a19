tandem_test(sampling_test SOURCES sampling_test.cc DEPS tandem_sampling)
